//! Random streams of requests: mostly well-formed, some with one word changed.

/// A small generator of numbers, so that a seed says everything.
pub struct Random(cenote_test_kit::Random);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(cenote_test_kit::Random(seed))
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0.index(bound)
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

const KEYS: &[&str] = &[
    "a", "b", "c", "Zm9v", "aa11", "noreply", "0", "\x01\x02", "k\tk",
];
// No number above 2^63: memcached then looks for a sign behind the value, where anything may be.
const VALUES: &[&str] = &[
    "",
    "x",
    "5",
    "100",
    "4611686018427387904",
    " 7 ",
    "a\r\nb",
    "ab\0c",
    "-3",
    "12 x",
    "9",
];
const TIMES: &[&str] = &["0", "-1", "1000", "0", "+1000", "0"];
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "7",
    "4294967295",
    "4294967297",
    "-18446744073709551615",
];
/// What a word may be changed into.
const ODD: &[&str] = &[
    "",
    "x",
    "-1",
    "noreply",
    "0",
    "1",
    "3",
    "50",
    "99999999999999999999999",
    "2147483648",
    "2147483646",
    "-2147483649",
    "1x",
    "\t5",
    "5\t",
    "+",
    "b",
    "q",
    "Z",
    "E",
    "S1",
    "Mx",
    "M",
    "O",
    "Tx",
    "T",
    "C",
    "Cx",
    "Fx",
    "J",
    "Dx",
    "get",
    "set",
    "mg",
    "ms",
    "md",
    "incr",
    "delete",
    "\r",
    "\0",
    "1\x002",
    "\u{ff}",
    "====",
    "Zm9",
    "touch",
    "mn",
    "k v v",
];

/// One request, or something like it, with as much around it as keeps two memcached peculiarities
/// out of the way: a refused `get` drops earlier replies that are not yet sent, and an item that a
/// reply still refers to is not counted in place.
pub fn request(random: &mut Random, last_cas: u64) -> Vec<u8> {
    let (mut words, value) = plain(random, last_cas);
    let mut prefix = "";
    let mut odd = false;
    if random.one_in(4) && words[0] != "stats" && words[0] != "flush_all" {
        odd = true;
        let mut at = random.below(words.len() + 1);
        let long = "k".repeat(250 + random.below(2));
        let word = match random.below(12) {
            0 => {
                // A retrieval touches the items before a key that is too long.
                let retrieves = words[0].contains("get") || words[0].contains("gat");
                at = if retrieves { 1 } else { at };
                long.as_str()
            }
            _ => random.pick(ODD),
        };
        // `ma` and `mg` do their work before they say that an opaque token is too long.
        let opaque = format!("O{}", "o".repeat(30 + random.below(3)));
        let has_opaque = matches!(words[0].as_str(), "ms" | "md") && random.one_in(6);
        let word = if has_opaque { &opaque } else { word };
        match random.below(3) {
            0 if at < words.len() && words.len() > 1 => drop(words.remove(at)),
            1 if at < words.len() => words[at] = word.to_owned(),
            _ => words.insert(at, word.to_owned()),
        }
        if words.iter().any(|word| word.len() >= 250) {
            prefix = "mn\r\n";
        }
    }
    let mut bytes = prefix.repeat(30).into_bytes();
    let space = if random.one_in(20) { "  " } else { " " };
    bytes.extend(words.join(space).bytes());
    bytes.extend(if random.one_in(5) { "\n" } else { "\r\n" }.bytes());
    if let Some(value) = value {
        bytes.extend(value.bytes());
        bytes.extend(if random.one_in(40) { "\n" } else { "\r\n" }.bytes());
    }
    if odd || bytes.starts_with(b"mg") {
        bytes.extend(b"mn\r\n");
    }
    bytes
}

fn plain(random: &mut Random, last_cas: u64) -> (Vec<String>, Option<String>) {
    let key = random.pick(KEYS).to_owned();
    let mut words: Vec<String> = Vec::new();
    let mut value = None;
    let noreply = random.one_in(8);
    match random.below(20) {
        0..=5 => {
            let mode = random.pick(&["set", "set", "add", "replace", "append", "prepend", "cas"]);
            let data = random_value(random);
            let (flags, time) = (random.pick(NUMBERS), random.pick(TIMES));
            words.extend([mode, &key, flags, time, &data.len().to_string()].map(str::to_owned));
            if mode == "cas" {
                words.push(some_cas(random, last_cas));
            }
            value = Some(data);
            push_if(&mut words, noreply, "noreply");
        }
        6..=7 => {
            let command = random.pick(&["get", "gets", "gat", "gats", "bget"]);
            words.push(command.to_owned());
            if command.starts_with("gat") {
                words.push(random.pick(TIMES).to_owned());
            }
            let count = if random.one_in(8) {
                40
            } else {
                1 + random.below(3)
            };
            words.extend((0..count).map(|_| random.pick(KEYS).to_owned()));
        }
        8 => {
            words.extend(["delete".to_owned(), key]);
            push_if(&mut words, random.one_in(3), "0");
            push_if(&mut words, noreply, "noreply");
        }
        9 => {
            let command = random.pick(&["incr", "decr"]).to_owned();
            words.extend([command, key, random.pick(NUMBERS).to_owned()]);
            push_if(&mut words, noreply, "noreply");
        }
        10 => {
            words.extend(["touch".to_owned(), key, random.pick(TIMES).to_owned()]);
            push_if(&mut words, noreply, "noreply");
        }
        11 => {
            words.push(
                random
                    .pick(&["version", "verbosity", "stats", "mn", "nonsense"])
                    .to_owned(),
            );
            match words[0].as_str() {
                "verbosity" => words.push("0".to_owned()),
                "stats" => words.push(random.pick(&["reset", "nonsense"]).to_owned()),
                _ if random.one_in(10) => {
                    words[0] = "flush_all".to_owned();
                    words.push(random.pick(&["0", "-5", "x"]).to_owned());
                }
                _ => {}
            }
        }
        12..=14 => {
            words.extend(["mg".to_owned(), key]);
            let flags = [
                "b", "c", "f", "h", "k", "O12", "q", "s", "t", "u", "v", "v", "P/x", "N0",
            ];
            some(random, &mut words, &flags);
            some(
                random,
                &mut words,
                &["N1000", "T0", "T1000", "R30", "R5000", "Lx"],
            );
        }
        15..=16 => {
            let data = random_value(random);
            words.extend(["ms".to_owned(), key, data.len().to_string()]);
            let cas = format!("C{}", some_cas(random, last_cas));
            let flags = [
                "b", "c", "k", "O12", "q", "I", "F7", "T0", "T1000", "T-1", &cas, "s",
            ];
            some(random, &mut words, &flags);
            some(random, &mut words, &["ME", "MA", "MP", "MR", "MS"]);
            value = Some(data);
        }
        17 => {
            words.extend(["md".to_owned(), key]);
            let cas = format!("C{}", some_cas(random, last_cas));
            some(
                random,
                &mut words,
                &["b", "I", "k", "Oab", "q", "T1000", &cas],
            );
        }
        18 => {
            words.extend(["ma".to_owned(), key]);
            let cas = format!("C{}", some_cas(random, last_cas));
            let flags = [
                "b", "N0", "N1000", "J13", "D3", "T0", "Oz", "q", "t", "c", "v", "k", &cas,
            ];
            some(random, &mut words, &flags);
            some(random, &mut words, &["MI", "MD", "M+", "M-"]);
        }
        _ => {
            words.extend(["me".to_owned(), key]);
            push_if(&mut words, random.one_in(2), "b");
        }
    }
    (words, value)
}

/// Up to three of them, the same one twice now and then.
fn some(random: &mut Random, words: &mut Vec<String>, flags: &[&str]) {
    for _ in 0..random.below(4) {
        let flag = random.pick(flags);
        let is_there = words[2..]
            .iter()
            .any(|word| word.as_bytes()[0] == flag.as_bytes()[0]);
        if !is_there || random.one_in(30) {
            words.push(flag.to_owned());
        }
    }
}

fn push_if(words: &mut Vec<String>, condition: bool, word: &str) {
    if condition {
        words.push(word.to_owned());
    }
}

/// Mostly the number of an item that may still be there.
fn some_cas(random: &mut Random, last_cas: u64) -> String {
    match random.below(8) {
        0 => "0".to_owned(),
        1 => "9999999999999999999".to_owned(),
        _ => (last_cas - (random.below(6) as u64).min(last_cas)).to_string(),
    }
}

fn random_value(random: &mut Random) -> String {
    if random.one_in(300) {
        return "x".repeat(1_048_500 + random.below(20));
    }
    random.pick(VALUES).to_owned()
}
