# Prints one line per case and contender, and below each case the lower bound.
def two: . * 100 | round | "\(. / 100 | floor).\(. % 100 | if . < 10 then "0\(.)" else tostring end)";
def bottleneck: if .shares then [.shares | sort_by(-.percent)[] | "\(.stage) \(.percent) %"] | join(", ") else "" end;
["case", "contender", "median s", "min–max", "drophammer/it", "peak MB", "its stages"],
(group_by(.case)[] | sort_by(.median_seconds) | .[0] as $case
  | (.[] | [.case, .contender, (.median_seconds | two), "\(.min_seconds | two)–\(.max_seconds | two)", (.ratio | two),
      (.peak_rss_bytes / 1e6 | round | tostring), bottleneck]),
    ($case | select(.link_floor_seconds) | [.case, "floor: link", (.link_floor_seconds | two), "", "", "", ""]),
    ($case | select(.cores_floor_seconds) | [.case, "floor: cores", (.cores_floor_seconds | two), "", "", "",
      ([.cpu_seconds_alone | to_entries[] | "\(.key) \(.value) s"] | join(", "))]))
| @tsv
