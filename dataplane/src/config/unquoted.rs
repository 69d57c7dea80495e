//! Text that its author left without quotes, the commonest slip in TOML. The parser takes it for a number or a truth value that it
//! cannot read (`users = [nobody]` is an "invalid float", because of `nan`); here the author is told what to write.

/// What there is instead of a value at byte `at`, where the parser gave up, if it is such text.
pub(super) fn value_at(text: &str, at: usize) -> Option<&str> {
    let line = text.get(..at)?.rfind('\n').map_or(0, |end| end + 1);
    let end = text[line..].find('\n').map_or(text.len(), |end| line + end);
    let (before, whole) = (&text[line..at], &text[line..end]);
    if whole.trim_start().starts_with('[') {
        return None;
    }
    let keyless = |sign: usize| before[..sign].trim().is_empty();
    if before.find('=').is_some_and(keyless) {
        return None;
    }
    // The first sign is that behind the key; a value may have more of them.
    let in_list = match before.find('=') {
        Some(sign) => before[sign..].contains(['[', '{']),
        None => text[..line].trim_end().ends_with(['[', ',']),
    };
    let start = match in_list {
        true => before.rfind(['=', '[', '{', ',']),
        false => before.find('='),
    };
    // A line that is neither of a list nor has a key has no value.
    if start.is_none() && !in_list {
        return None;
    }
    let value = &whole[start.map_or(0, |start| start + 1)..];
    let value = match in_list {
        true => value.split([',', ']', '}', '#']).next()?,
        false => value.split('#').next()?,
    };
    let value = value.trim();
    let is_text = !value.is_empty() && !value.contains(['"', '\'', '[', '{']);
    // One that can be read is not what is wrong.
    let reads = || toml::from_str::<toml::Table>(&format!("value = {value}")).is_ok();
    (is_text && !reads()).then_some(value)
}

/// What to say of it, behind the name of its key.
pub(super) fn problem(value: &str) -> String {
    let number = value.bytes().all(|byte| byte.is_ascii_digit());
    match number {
        true => format!(
            "is {value}: a number must not begin with 0, and text must be in quotes: \"{value}\""
        ),
        false => format!("is {value} without quotes: text must be in quotes, \"{value}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::parse;

    #[test]
    fn text_without_quotes_is_told_to_have_them() {
        for (text, key, line, value) in [
            ("[control]\nusers = nobody\n", "users", 2, "nobody"),
            (
                "[control]\nusers = [\"root\", nobody]\n",
                "users",
                2,
                "nobody",
            ),
            (
                "[control]\noperators = [\n  nobody,\n]\n",
                "operators",
                3,
                "nobody",
            ),
            (
                "[control]\nsocket = /run/my.sock # mine\n",
                "socket",
                2,
                "/run/my.sock",
            ),
            ("[[nic]]\nname = roce0\n", "name", 2, "roce0"),
            ("[[nic]]\nport = fabric:wire\n", "port", 2, "fabric:wire"),
            (
                "[[nic]]\nport = vdev:net_memif0,role=server\n",
                "port",
                2,
                "vdev:net_memif0,role=server",
            ),
            (
                "[[nic]]\naddresses = [10.77.0.1/24]\n",
                "addresses",
                2,
                "10.77.0.1/24",
            ),
            (
                "[[nic]]\nmac = 02:00:00:00:00:01\n",
                "mac",
                2,
                "02:00:00:00:00:01",
            ),
            ("[[nic]]\nline_rate = 10Gb/s\n", "line_rate", 2, "10Gb/s"),
            ("[[lcore]]\nidle = spin\n", "idle", 2, "spin"),
            ("[[lcore]]\nidle = adaptive\n", "idle", 2, "adaptive"),
            ("[log]\nlevel = info\n", "level", 2, "info"),
            ("[log]\nlevel = trace\n", "level", 2, "trace"),
            ("log = { level = info }\n", "level", 1, "info"),
            ("[[impair]]\nlink = wire\ndrop = true\n", "link", 2, "wire"),
            (
                "[[nic]]\ncongestion = fixed rate\n",
                "congestion",
                2,
                "fixed rate",
            ),
            ("[[nic]]\nmemory = never\n", "memory", 2, "never"),
            (
                "[limits.program]\nregistered = 64GiB\n",
                "registered",
                2,
                "64GiB",
            ),
        ] {
            let message = parse("f.toml", text).expect_err("must be refused");
            assert_eq!(
                message.to_string(),
                format!(
                    "f.toml:{line}: `{key}` is {value} without quotes: text must be in quotes, \"{value}\""
                ),
                "{text}"
            );
        }
        let octal = parse("f.toml", "[control]\nmode = 0660\n").expect_err("must be refused");
        let says = "f.toml:2: `mode` is 0660: a number must not begin with 0, and text must be in quotes: \"0660\"";
        assert_eq!(octal.to_string(), says);
    }

    #[test]
    fn other_mistakes_are_the_parsers_to_tell() {
        for text in [
            "[eal\n",
            "[[nic]\nname = 7\n",
            "[control]\nusers\n",
            "[control]\nusers = \n",
            "[control]\nsocket = \"/run/x.sock\n",
            "[control]\nusers = [\"root\"\n",
            "[control]\nmode = \"0666\" 7\n",
            "[log]\nlevel = 'warn\" # it = x\n",
            "]\n",
            "= nobody\n",
            "[control]\nusers = [1,, 2]\n",
        ] {
            let message = parse("f.toml", text).expect_err("must be refused");
            assert!(!message.to_string().contains("quotes,"), "{message}");
        }
    }
}
