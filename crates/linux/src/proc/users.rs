//! Users by name and number, as `/etc/passwd` has them. Directories of a network are not asked: the answer
//! may take long.

use crate::error::Result;
use crate::root::Root;

const FILE: &str = "etc/passwd";

/// The number of a user of this name; `None` where there is none.
///
/// # Errors
/// The file cannot be read.
pub fn number(root: &Root, name: &str) -> Result<Option<u32>> {
    let text = root.text(FILE)?;
    let number = users(&text).find(|&(known, _)| known == name);
    Ok(number.and_then(|(_, number)| number.parse().ok()))
}

/// The name of a user of this number; `None` where there is none.
///
/// # Errors
/// The file cannot be read.
pub fn name(root: &Root, number: u32) -> Result<Option<String>> {
    let (text, number) = (root.text(FILE)?, number.to_string());
    let name = users(&text).find(|&(_, known)| known == number);
    Ok(name.map(|(name, _)| name.to_owned()))
}

/// Name and number of each.
///
/// ```text
/// alice:x:1000:1000::/home/alice:/bin/sh
/// ```
fn users(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        Some((fields.next()?, fields.nth(1)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_and_numbers() {
        let root = Root::host();
        assert_eq!(number(&root, "root").unwrap(), Some(0));
        assert_eq!(name(&root, 0).unwrap().as_deref(), Some("root"));
        assert_eq!(number(&root, "no-such-user").unwrap(), None);
        assert_eq!(name(&root, u32::MAX).unwrap(), None);
    }
}
