# Renders the chart: a bar per contender with the length of its median, a whisker from its fastest round to its slowest, a line at the lower
# bound.
def width: 760; def left: 236; def right: 66; def row: 24; def head: 40;
def f: . * 10 | round / 10;
def seconds: . * 100 | round | "\(. / 100 | floor).\(. % 100 | if . < 10 then "0\(.)" else tostring end)";
def tree: {debian: "Debian", large: "large files", raw: "Debian as a raw disk image"}[.];
def size: "\(.unpacked_bytes / 1e7 | round / 100) GB" + if .entries then " in \(.entries) entries" else "" end;
def target: {ram: "loop device in memory", disk: "this machine's disk"}[.];
def link: {max: "loopback, no limit", "10g": "10 Gbit/s", "1g": "1 Gbit/s", "4x250m": "1 Gbit/s, a connection 250 Mbit/s"}[.];
def title: size as $size | .case | split("-") | "\(.[0] | tree), \($size) · \(.[1] | target) · \(.[2] | link)";
def words: {
    "curl-zstd-tar": "curl | zstd -d | tar -x", "curl-lz4-tar": "curl | lz4 -d | tar -x",
    "download-md5-lz4-tar": "download, md5, lz4 -d | tar -x", "dd-fsync": "dd conv=fsync of the same bytes",
    "curl-zstd-dd": "curl | zstd -d | dd", "bmaptool-copy": "bmaptool copy", "download-qemu-img": "download, qemu-img convert",
    "drophammer-raw": "drophammer"}[.] // .;
def escaped: gsub("&"; "&amp;") | gsub("<"; "&lt;") | gsub(">"; "&gt;");
def floors: [.[0] | {x: .link_floor_seconds, text: "link"}, {x: .cores_floor_seconds, text: "cores"} | select(.x)];
def text($x; $y; $class; $anchor): "<text x=\"\($x | f)\" y=\"\($y | f)\" class=\"\($class)\" text-anchor=\"\($anchor)\">\(. | escaped)</text>";
def bar($y; $scale): . as $row
  | (if .contender | startswith("drophammer") then "ours" elif .contender == "dd-fsync" then "disk" else "other" end) as $class
  | (left + .min_seconds * $scale) as $from | (left + .max_seconds * $scale) as $to | ($y + 9) as $middle
  | (.contender | words | text(left - 8; $middle + 4; $class + "-name"; "end")),
    "<rect x=\"\(left)\" y=\"\($y)\" width=\"\(.median_seconds * $scale | f)\" height=\"18\" rx=\"2\" class=\"\($class)\"/>",
    "<path d=\"M\($from | f) \($middle)H\($to | f)M\($from | f) \($middle - 4)v8M\($to | f) \($middle - 4)v8\" class=\"whisker\"/>",
    ("\(.median_seconds | seconds) s" | text(([$to, left + $row.median_seconds * $scale] | max) + 6; $middle + 4; "value"; "start"));
def panel($top; $scale): (length * row) as $height | sort_by(.median_seconds) as $rows | floors as $floors
  | (.[0] | title | text(16; $top + 16; "title"; "start")),
    ($rows | to_entries[] | .key as $index | .value | bar($top + 26 + $index * row; $scale)),
    ($floors[] | (left + .x * $scale) as $x | "<path d=\"M\($x | f) \($top + 24)v\($height)\" class=\"floor\"/>",
      ("floor: \(.text) \(.x | seconds) s" | text($x; $top + 36 + $height; "floor-name"; "middle")));
def height: length * row + 26 + (if floors | length > 0 then 18 else 0 end) + 14;
(map(.max_seconds) | max) as $longest
| ((width - left - right) / $longest) as $scale
| group_by(.case) | sort_by(.[0].case | split("-") | [["debian", "large", "raw"], ["ram", "disk"], ["max", "10g", "1g"]] as $order
    | [range(3) as $n | .[$n] as $word | $order[$n] | index($word)])
| . as $cases | reduce range(length) as $n ([head]; . + [.[-1] + ($cases[$n] | height)]) | . as $tops
| (.[-1] + 12) as $whole
| "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 \(width) \($whole)\" width=\"\(width)\" height=\"\($whole)\" font-family=\"system-ui, sans-serif\" font-size=\"12\">",
  "<title>Seconds to burn an image, final sync included</title>",
  "<style>.page{fill:#fff}text{fill:#1f2328}.title{font-weight:600}.head{font-size:15px;font-weight:600}.ours{fill:#2563c9}.ours-name{font-weight:700}",
  ".other{fill:#b4bcc8}.disk{fill:#d9c8a0}.whisker{stroke:#3d444d;fill:none}.floor{stroke:#c2410c;stroke-dasharray:4 3;fill:none}.floor-name{fill:#c2410c;font-size:11px}",
  "@media(prefers-color-scheme:dark){.page{fill:#0d1117}text{fill:#e6edf3}.ours{fill:#5b9bff}.other{fill:#5b6472}.disk{fill:#7a6a45}.whisker{stroke:#c9d1d9}",
  ".floor{stroke:#ff8a4c}.floor-name{fill:#ff8a4c}}</style>",
  "<rect width=\"100%\" height=\"100%\" rx=\"6\" class=\"page\"/>",
  ("Seconds to burn an image, final sync included; median of \($cases[0][0].rounds) rounds" | text(16; 24; "head"; "start")),
  (range($cases | length) as $n | $cases[$n] | panel($tops[$n]; $scale)),
  "</svg>"
