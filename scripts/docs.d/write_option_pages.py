"""Writes the pages with the help of all commands, and an index of these pages.

Usage: write_option_pages.py PROGRAM MAN-FOLDER PAGE-FOLDER

MAN-FOLDER contains the manual pages that `drophammer man` has written: one for each visible command. The commands of a
noun are on pages of their own, and the commands without subcommands share pages. Prints the lines of SUMMARY.md.
"""

import itertools
import os
import re
import subprocess
import sys

# Number of lines that fit on about five screens. If the help of a noun is longer, it is divided into pages of similar
# length.
LINES = 250
OTHER = "other commands"

program, manual, folder = sys.argv[1:]


def read_command(page):
    """Returns the words of the command that a manual page describes, without the name of the program."""
    with open(f"{manual}/{page}") as file:
        synopsis = file.read().split("\n.SH SYNOPSIS\n", 1)[1]
    return re.match(r"\\fB(.*?)\\fR", synopsis).group(1).replace("\\-", "-").split()[1:]


def render_section(words):
    """Returns the help of a command as a section of a page."""
    text = subprocess.run([program, *words, "--help"], check=True, capture_output=True, text=True).stdout
    return f"\n## {' '.join(['drophammer', *words])}\n\n```text\n{text.rstrip()}\n```\n"


def split_sections(sections):
    """Distributes sections, which are pairs of a command and its text, over pages in their order."""
    lengths = [text.count("\n") for _, text in sections]
    total = sum(lengths)
    count = -(-total // LINES)
    pages = [[] for _ in range(count)]
    for number, section in enumerate(sections):
        center = sum(lengths[:number]) + lengths[number] / 2
        pages[int(center / total * count)].append(section)
    return [page for page in pages if page]


def name_range(page, skipped):
    """Returns the first and the last command of a page, without the words that all its commands have in common."""
    names = [" ".join(words[skipped:]) for words, _ in page if words[skipped:]] or ["overview"]
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


commands = sorted(read_command(page) for page in os.listdir(manual) if page.endswith(".1"))
nouns = {words[0] for words in commands if len(words) > 1}


def find_noun(words):
    return words[0] if words and words[0] in nouns else OTHER


groups = itertools.groupby(sorted(commands, key=lambda words: (find_noun(words) == OTHER, words)), key=find_noun)
index = ["# All commands and options", ""]
index += ["The program prints the help on these pages with `--help`. [Commands](commands.md) is an overview.", ""]
print("  - [All commands and options](options.md)")
for noun, group in groups:
    pages = split_sections([(words, render_section(words)) for words in group])
    links = []
    for number, page in enumerate(pages, 1):
        title = "Options of other commands" if noun == OTHER else f"Options of drophammer {noun}"
        if len(pages) > 1:
            title += f": {name_range(page, 0 if noun == OTHER else 1)}"
        name = f"options-{noun.split()[0]}{f'-{number}' if number > 1 else ''}.md"
        with open(f"{folder}/{name}", "w") as file:
            file.write(f"# {title}\n\nAll pages: [All commands and options](options.md).\n")
            file.writelines(text for _, text in page)
        print(f"    - [{title}]({name})")
        for words, _ in page:
            anchor = "-".join(["drophammer", *words])
            shown = " ".join(words if noun == OTHER else words[1:]) or noun
            links.append(f"[{shown}]({name}#{anchor})" if words else f"[drophammer]({name}#drophammer)")
    index.append(f"* {noun}: {', '.join(links)}")
with open(f"{folder}/options.md", "w") as file:
    file.write("\n".join(index) + "\n")
