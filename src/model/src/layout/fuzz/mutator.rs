//! Mutations of inputs: changed, repeated, nested or copied lines, words, numbers and characters.

/// Random number generator (splitmix64). Its seed determines the whole run.
pub(crate) struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }
}

/// Words that have a special meaning in YAML, in layouts, in the kernel, or in careless parsers.
const SPECIAL_WORDS: [&str; 64] = [
    "",
    "~",
    "null",
    "true",
    "no",
    "0",
    "1",
    "-1",
    "1.0",
    "1e309",
    "0x10",
    "010",
    "128",
    "129",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775808",
    "17592186044415",
    "*x",
    "&x y",
    "!!str",
    "!x",
    "[",
    "]",
    "{",
    "}",
    "- ",
    "? ",
    ": ",
    "| ",
    "> ",
    "# ",
    "'",
    "\"",
    "\\",
    "%YAML 1.2",
    "---",
    "...",
    "<<: *x",
    "\t",
    "\u{feff}",
    "\u{2028}",
    "\u{85}",
    "\0",
    "\u{1b}[2J",
    "é",
    "𝕏𝕏𝕏",
    "\u{202e}",
    "/dev/sda",
    "/dev/sda1",
    "/dev/md/x",
    "/dev/",
    "/dev/vg00/x",
    "/dev/disk/by-path/../x",
    "/",
    "//",
    "/a/../b",
    "tmpfs",
    "8e00",
    "--metadata=1.0",
    "<in> a <or>",
    "min",
];

const OPERATORS: [&str; 16] = ["", "=", "!=", ">", "<", ">=", "=>", "<=", "=<", "~", "~>", "^", "==", "*", ",", "||"];

pub(crate) struct Mutator<'a> {
    pub random: &'a mut Random,
    pub corpus: &'a [String],
}

impl Mutator<'_> {
    /// Returns a document of the corpus with some mutations.
    pub(crate) fn document(&mut self) -> String {
        let mut lines = self.some_lines();
        for _ in 0..self.random.below(4) {
            self.change(&mut lines);
        }
        let mut text = lines.join("\n");
        for _ in 0..self.random.below(3) {
            self.change_characters(&mut text);
        }
        text
    }

    fn some_lines(&mut self) -> Vec<String> {
        let index = self.random.below(self.corpus.len());
        self.corpus[index].lines().map(str::to_owned).collect()
    }

    fn change(&mut self, lines: &mut Vec<String>) {
        let at = self.random.below(lines.len());
        let end = (at + 1 + self.random.below(8)).min(lines.len());
        let block = lines.get(at..end).unwrap_or_default().to_vec();
        match self.random.below(60) {
            0..2 => drop(lines.splice(at..end.max(at), [])),
            2..4 => drop(lines.splice(at..at, block)),
            4 => lines.reverse(),
            5..7 => {
                let other = self.some_lines();
                let from = self.random.below(other.len());
                let to = (from + 1 + self.random.below(12)).min(other.len());
                lines.splice(at..at, other.get(from..to).unwrap_or_default().to_vec());
            }
            7 => lines.iter_mut().skip(at).take(block.len()).for_each(|line| line.insert_str(0, "  ")),
            8 => {
                let shifted = |line: &mut String| *line = line.strip_prefix("  ").unwrap_or(line).to_owned();
                lines.iter_mut().skip(at).take(block.len()).for_each(shifted);
            }
            // The lists are long, but within the maximum size of a document.
            9 => {
                let bytes: usize = block.iter().map(|line| line.len() + 1).sum();
                let times = self.random.below((100 << 10) / bytes.max(1));
                lines.splice(at..at, std::iter::repeat_n(block, times).flatten());
            }
            10 => self.many_different(lines, at),
            11 => self.nest(lines, at),
            12 => {
                let bomb = "a: &a [x, x]\nb: &b [*a, *a, *a, *a]\nc: &c [*b, *b, *b, *b]\nd: [*c, *c, *c, *c]";
                lines.splice(at..at, bomb.lines().map(str::to_owned));
            }
            _ => {
                if let Some(line) = lines.get_mut(at) {
                    self.change_word(line);
                }
            }
        }
    }

    /// Repeats a line a random number of times, with increasing numbers.
    fn many_different(&mut self, lines: &mut Vec<String>, at: usize) {
        let Some(line) = lines.get(at).cloned() else { return };
        let times = self.random.below((100 << 10) / (line.len() + 8));
        let numbered = (0..times).map(|number| match line.find(|c: char| c.is_ascii_digit()) {
            Some(digit) => format!("{}{number}{}", &line[..digit], &line[digit + 1..]),
            None => line.replacen(':', &format!("{number}:"), 1),
        });
        lines.splice(at..at, numbered);
    }

    fn nest(&mut self, lines: &mut [String], at: usize) {
        let depth = self.random.of(&[&2, &31, &33, &200, &20_000]);
        let Some(line) = lines.get_mut(at) else { return };
        let value = line.find([':', '-']).map_or(0, |end| end + 1);
        let open = self.random.of(&[" [", " {a: ", " - ", " ? ", "\"", " &x", " !!seq ["]);
        line.insert_str(value, &open.repeat(*depth));
    }

    /// Replaces or inserts a word that is delimited by blanks, quotes or brackets.
    fn change_word(&mut self, line: &mut String) {
        let is_end = |c: char| " \"':,[]{}".contains(c);
        let ends: Vec<usize> = line.char_indices().filter(|(_, c)| is_end(*c)).map(|(at, _)| at + 1).collect();
        let from = ends.get(self.random.below(ends.len())).copied().unwrap_or(0);
        let to = line[from..].find(is_end).map_or(line.len(), |length| from + length);
        let number = self.random.next() >> self.random.below(64);
        let word = match self.random.below(8) {
            0 => number.to_string(),
            1 => format!("{}{number}", &line[from..to]),
            2 => "x".repeat(self.random.below(300)),
            3 => self.constraint(),
            4 => self.any_word(),
            _ => self.random.of(&SPECIAL_WORDS).to_owned(),
        };
        let to = if self.random.below(4) == 0 { from } else { to };
        line.replace_range(from..to, &word);
    }

    /// Returns a word of another document.
    fn any_word(&mut self) -> String {
        let lines = self.some_lines();
        let words: Vec<&str> = lines.iter().flat_map(|line| line.split_whitespace()).collect();
        words.get(self.random.below(words.len())).copied().unwrap_or_default().to_owned()
    }

    fn change_characters(&mut self, text: &mut String) {
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        let Some(&at) = places.get(self.random.below(places.len())) else { return };
        match self.random.below(3) {
            0 => drop(text.remove(at)),
            1 => text.insert_str(at, self.random.of(&SPECIAL_WORDS)),
            _ => text.truncate(at),
        }
    }

    /// Returns a version constraint that is usually valid.
    pub(crate) fn constraint(&mut self) -> String {
        let mut text = self.random.of(&OPERATORS).to_owned();
        text += self.random.of(&["", " ", " ", " ", " ", " ", "  ", "\t"]);
        text += self.random.of(&["", "", "", "v"]);
        let parts: Vec<String> = (0..1 + self.random.below(4)).map(|_| self.number()).collect();
        text += &parts.join(".");
        text += self.random.of(&["", "", "", "", "-rc.1", "-01", "+b", "-", "+", "-a+b-c", ".x", " "]);
        if self.random.below(20) == 0 {
            self.change_characters(&mut text);
        }
        text
    }

    fn number(&mut self) -> String {
        match self.random.below(8) {
            0 => self.random.of(&SPECIAL_WORDS).to_owned(),
            1 => (self.random.next() >> self.random.below(64)).to_string(),
            2 => format!("0{}", self.random.below(20)),
            3 => u64::MAX.to_string(),
            _ => self.random.below(4).to_string(),
        }
    }
}
