//! The machine's own Debian mirror, from apt's source lists.

use std::fs;
use std::path::Path;

/// Debian's content network, where the machine names no mirror.
const ARCHIVE: &str = "http://deb.debian.org/debian";
const SECURITY: &str = "http://deb.debian.org/debian-security";

/// Base addresses of Debian's archives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrors {
    /// The main archive.
    pub archive: String,
    /// The security archive.
    pub security: String,
}

/// One source.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    uri: String,
    suites: Vec<String>,
    components: Vec<String>,
}

/// Parts of suite names, as in `bookworm-backports`. Vendors have names of the same shape
/// (`bookworm-pgdg`), so the ends are listed.
const RELEASES: &[&str] = &["bookworm", "trixie", "forky", "sid", "stable", "testing"];
const POCKETS: &[&str] = &["", "-updates", "-backports"];

impl Source {
    /// Is it one of Debian's own archives, the security archive or the main one?
    fn is_debian(&self, security: bool) -> bool {
        let pockets = if security {
            &["-security"][..]
        } else {
            POCKETS
        };
        self.components.iter().any(|name| name == "main")
            && self.suites.iter().any(|suite| {
                RELEASES.iter().any(|release| {
                    suite
                        .strip_prefix(release)
                        .is_some_and(|pocket| pockets.contains(&pocket))
                })
            })
    }
}

impl Mirrors {
    /// What this machine uses.
    #[must_use]
    pub fn of_machine() -> Self {
        Self::from_sources(&machine_sources())
    }

    fn from_sources(sources: &[Source]) -> Self {
        let find = |security: bool, default: &str| {
            let source = sources.iter().find(|source| source.is_debian(security));
            source
                .map_or(default, |source| &source.uri)
                .trim_end_matches('/')
                .to_owned()
        };
        Self {
            archive: find(false, ARCHIVE),
            security: find(true, SECURITY),
        }
    }
}

/// Does the machine have a source of this suite?
#[must_use]
pub fn has_suite(suite: &str) -> bool {
    machine_sources()
        .iter()
        .any(|source| source.suites.iter().any(|name| name == suite))
}

/// `VERSION_CODENAME=bookworm` of `/etc/os-release`, where the system is Debian.
#[must_use]
pub fn codename(release: &str) -> Option<String> {
    let value = |name: &str| {
        let line = release
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.map(|text| text.trim_matches('"').to_owned())
    };
    (value("ID")? == "debian")
        .then(|| value("VERSION_CODENAME"))
        .flatten()
}

fn machine_sources() -> Vec<Source> {
    let mut sources = Vec::new();
    let mut files = vec!["/etc/apt/sources.list".into()];
    let parts = fs::read_dir("/etc/apt/sources.list.d")
        .into_iter()
        .flatten()
        .flatten();
    files.extend(parts.map(|entry| entry.path()));
    files.sort();
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        sources.extend(parse(&file, &text));
    }
    sources
}

fn parse(file: &Path, text: &str) -> Vec<Source> {
    match file.extension().and_then(|end| end.to_str()) {
        Some("sources") => text.split("\n\n").filter_map(parse_stanza).collect(),
        Some("list") => text.lines().filter_map(parse_line).collect(),
        _ => Vec::new(),
    }
}

/// A line such as `deb [arch=amd64 signed-by=/k.gpg] http://deb.debian.org/debian bookworm main`.
fn parse_line(line: &str) -> Option<Source> {
    let rest = line.trim().strip_prefix("deb ")?.trim_start();
    let rest = if rest.starts_with('[') {
        rest.split_once(']')?.1
    } else {
        rest
    };
    let mut words = rest.split_whitespace();
    let uri = words.next().filter(|uri| uri.contains(":/"))?;
    let suites = vec![words.next()?.to_owned()];
    Some(Source {
        uri: uri.to_owned(),
        suites,
        components: words.map(str::to_owned).collect(),
    })
}

/// A stanza with lines such as `Types: deb`, `URIs: http://deb.debian.org/debian` and
/// `Suites: bookworm bookworm-updates`.
fn parse_stanza(stanza: &str) -> Option<Source> {
    let field = |name: &str| {
        let line = stanza
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| {
            value
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
    };
    if field("Enabled").is_some_and(|value| value == ["no"])
        || !field("Types")?.contains(&"deb".into())
    {
        return None;
    }
    Some(Source {
        uri: field("URIs")?.into_iter().next()?,
        suites: field("Suites")?,
        components: field("Components").unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_source_lists_are_read() {
        let lines = "deb https://vendor.example/linux/debian bookworm stable\n\
                     deb https://vendor.example/pg bookworm-pgdg main\n\
                     deb [signed-by=/k.gpg] http://mirror.example/debian/ bookworm main\n\
                     # deb x y z\ndeb-src http://a/b c d\ndeb broken\n";
        let mut sources = parse(Path::new("a.list"), lines);
        assert_eq!(sources.len(), 3);
        assert_eq!(sources[2].suites, ["bookworm"]);
        let stanzas = "Types: deb\nURIs: http://s.example/debian-security\n\
                       Suites: bookworm-security\nComponents: main\n\n\
                       Types: deb-src\nURIs: http://x\nSuites: y\n\n\
                       Enabled: no\nTypes: deb\nURIs: http://off.example\nSuites: sid\n";
        let more = parse(Path::new("a.sources"), stanzas);
        assert_eq!(more.len(), 1);
        assert_eq!(more[0].suites, ["bookworm-security"]);
        assert_eq!(parse(Path::new("a.save"), lines), []);
        sources.extend(more);
        let mirrors = Mirrors::from_sources(&sources);
        assert_eq!(mirrors.archive, "http://mirror.example/debian");
        assert_eq!(mirrors.security, "http://s.example/debian-security");
    }

    #[test]
    fn without_a_debian_source_the_content_network_serves() {
        let mirrors = Mirrors::from_sources(&[]);
        assert_eq!(
            mirrors,
            Mirrors {
                archive: ARCHIVE.into(),
                security: SECURITY.into()
            }
        );
    }

    #[test]
    fn the_codename_is_that_of_a_debian() {
        assert_eq!(
            codename("ID=debian\nVERSION_CODENAME=bookworm\n").as_deref(),
            Some("bookworm")
        );
        assert_eq!(codename("ID=ubuntu\nVERSION_CODENAME=noble\n"), None);
        assert_eq!(codename("ID=debian\n"), None);
        assert_eq!(codename(""), None);
    }
}
