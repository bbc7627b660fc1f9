# One line a case and contender, and below each case what nothing can be faster than.
def digits($n): . * pow(10; $n) | round / pow(10; $n) | tostring;
def bottleneck: if .shares then [.shares | sort_by(-.percent)[] | "\(.stage) \(.percent) %"] | join(", ") else "" end;
["case", "contender", "median s", "min–max", "drophammer/it", "peak MB", "its stages"],
(group_by(.case)[] | sort_by(.median_seconds) | .[0] as $case
  | (.[] | [.case, .contender, (.median_seconds | digits(2)), "\(.min_seconds | digits(2))–\(.max_seconds | digits(2))", (.ratio | digits(2)),
      (.peak_rss_bytes / 1e6 | round | tostring), bottleneck]),
    ($case | select(.link_floor_seconds) | [.case, "floor: link", (.link_floor_seconds | digits(2)), "", "", "", ""]),
    ($case | select(.cores_floor_seconds) | [.case, "floor: cores", (.cores_floor_seconds | digits(2)), "", "", "",
      ([.cpu_seconds_alone | to_entries[] | "\(.key) \(.value) s"] | join(", "))]))
| @tsv
