# Prints each goal for which a case has figures, and by how much it is met or missed.
def two: . * 100 | round | "\(. / 100 | floor).\(. % 100 | if . < 10 then "0\(.)" else tostring end)";
def goal($case; $text; $is; $most):
  [$case, $text, ($is | two), "at most \($most)", (if $is <= $most then "met" else "MISSED by \($is - $most | two)" end)];
group_by(.case)[] | .[0].case as $case | map({(.contender): .}) | add as $by
| ($by.drophammer // $by["drophammer-raw"]) as $ours | ($case | split("-")) as [$tree, $target, $link]
| def against($names): [$by[$names[]] | select(.) | .median_seconds] | min;
  (if $target == "ram" and $tree != "raw" and $link != "1g" then
    goal($case; "of download, md5, lz4, tar"; $ours.median_seconds / against(["download-md5-lz4-tar"]); 0.5),
    goal($case; "of the best shell pipeline"; $ours.median_seconds / against(["curl-zstd-tar", "curl-lz4-tar"]); 0.65) else empty end),
  (if $target == "ram" and $link == "1g" then goal($case; "of the link's floor"; $ours.median_seconds / $ours.link_floor_seconds; 1.1) else empty end),
  (if $ours.cores_floor_seconds then goal($case; "of the cores' floor"; $ours.median_seconds / $ours.cores_floor_seconds; 1.3) else empty end),
  (if $by["dd-fsync"] and $link == "max" then goal($case; "of dd conv=fsync"; $ours.median_seconds / $by["dd-fsync"].median_seconds; 1.15) else empty end),
  (if $tree == "raw" then goal($case; "of the fastest of the three";
    $ours.median_seconds / against(["curl-zstd-dd", "bmaptool-copy", "download-qemu-img"]); 1) else empty end),
  goal($case; "peak memory, MiB"; $ours.peak_rss_bytes / 1048576; 96)
| @tsv
