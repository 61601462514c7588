//! Which names a file of `/scratch` may have: they become headers and paths elsewhere.

/// Most parts of a path.
pub(crate) const PARTS: usize = 16;
/// Most bytes of one part.
const PART_BYTES: usize = 255;

/// Checks one part of a path; the error continues "the name …".
pub(crate) fn check_part(part: &str) -> Result<(), String> {
    if part.is_empty() || part == "." || part == ".." {
        return Err(format!("has the part `{part}`"));
    }
    if part.len() > PART_BYTES {
        return Err(format!(
            "has a part of {} bytes, {PART_BYTES} are allowed",
            part.len()
        ));
    }
    match part
        .chars()
        .find(|c| c.is_control() || matches!(c, '/' | '\\'))
    {
        Some(c) => Err(format!("has the character {c:?}")),
        None => Ok(()),
    }
}

/// Splits a path relative to `/scratch` into its parts; the error continues "the path …".
pub(crate) fn parts(path: &str) -> Result<Vec<&str>, String> {
    if path.starts_with('/') {
        return Err("is absolute; name the file relative to /scratch".into());
    }
    let parts: Vec<&str> = path.split('/').take(PARTS + 1).collect();
    if parts.len() > PARTS {
        return Err(format!("has more than {PARTS} parts"));
    }
    parts.iter().try_for_each(|part| check_part(part))?;
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_are_refused() {
        assert_eq!(parts("a/b.txt").unwrap(), ["a", "b.txt"]);
        let deep = ["x"; 17].join("/");
        for bad in [
            "",
            "/a",
            "a//b",
            "a/../b",
            "./a",
            "a\n",
            "a\\b",
            "a\u{0}",
            "a/",
            &deep,
            &"x".repeat(256),
        ] {
            assert!(parts(bad).is_err(), "{bad:?}");
        }
    }
}
