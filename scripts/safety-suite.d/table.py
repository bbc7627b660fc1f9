"""Formats the results as a Markdown table."""


def format_results(results):
    rows = ["| case | installer | outcome | preserved data | changed bytes | system renewed | note |", "|---|---|---|---|---|---|---|"]
    rows += [format_row(result) for result in results]
    return "\n".join(rows) + "\n"


def format_row(result):
    objects = result["objects"]
    kept = [item for item in objects if not item["changed_bytes"] and item.get("files") != "differ"]
    data = f"{result['data']}, {len(kept)} of {len(objects)} ranges" if objects else "-"
    changed = sum(item["changed_bytes"] for item in objects) if objects else "-"
    outcome = result["outcome"]
    if outcome == "refused" and "written_bytes" in result:
        outcome += ", nothing written" if result["written_bytes"] == 0 else f", {result['written_bytes']} bytes written"
    note = result["note"].replace("|", "\\|")
    return f"| {result['case']} | {result['adapter']} | {outcome} | {data} | {changed} | {result.get('renewed', '-')} | {note} |"
