# Aggregates single runs to one row per case and contender. ratio: drophammer's median divided by the contender's median; below 1 if drophammer
# is faster.
($stages | group_by([.case, .stage]) | map({case: .[0].case, stage: .[0].stage, cpu_seconds: (map(.cpu_seconds) | median)})) as $alone
| $cases | map(. as $case
  | ($alone | map(select(.case == $case.case) | {(.stage): .cpu_seconds}) | add) as $alone
  | [$runs[] | select(.case == $case.case)] as $runs
  | ($runs | map(select(.contender | startswith("drophammer")).seconds) | median) as $ours
  | $runs | group_by(.contender) | map({
      case: .[0].case,
      contender: .[0].contender,
      rounds: length,
      median_seconds: (map(.seconds) | median),
      min_seconds: (map(.seconds) | min),
      max_seconds: (map(.seconds) | max),
      ratio: ($ours / (map(.seconds) | median)),
      peak_rss_bytes: (map(.peak_rss_bytes) | max),
      image_bytes: $case.image_bytes,
      unpacked_bytes: $case.unpacked_bytes,
      entries: $case.entries,
      link_floor_seconds: $case.link_seconds,
      cores_floor_seconds: (if $alone then ($alone | add) / $cores else null end),
      cpu_seconds_alone: $alone,
      shares: (sort_by(.seconds)[length / 2 | floor].shares)
    }) | sort_by(.median_seconds)) | add
