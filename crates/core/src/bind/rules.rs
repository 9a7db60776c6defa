//! Rules for a program's memory, as people write them: `size>=1M: striped node:0 + node:1`.

use super::{KernelPolicy, MemoryPolicy, Mode};
use crate::rset::{Expression, ExpressionFault, ResourceSet, Resources};
use crate::shim::{Kinds, Rule, Site, Stride};
use crate::size::parse_bytes;
use std::str::FromStr;

/// A rule that was read and not yet worked out against a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenRule {
    /// What is meant.
    pub kinds: Kinds,
    /// Least and most bytes, both included.
    pub bytes: (u64, u64),
    /// A call site in the user's words: `FUNCTION`, `FILE:FUNCTION`, `FILE+0x123`.
    pub site: Option<String>,
    policy: MemoryPolicy,
    stride: Stride,
    set: Option<String>,
    text: String,
}

const FORM: &str = "write CONDITION[,CONDITION...]: POLICY [SET], as in 'size>=1M: striped', \
                    'size>=64M,site=load: bind node:1' or 'map,size>=1G: blocks'";

impl WrittenRule {
    /// As it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The rule for the shim. Where it names no set, `otherwise` is meant.
    ///
    /// # Errors
    /// A sentence: the set cannot be read or comes to nothing, or the policy has no memory in it.
    pub fn resolve(
        &self,
        otherwise: &ResourceSet,
        site: Option<Site>,
        resources: &Resources,
    ) -> Result<Rule, String> {
        let set = match &self.set {
            None => otherwise.clone(),
            Some(text) => {
                let pointed = |fault: ExpressionFault| format!("--place: {}", fault.pointed(text));
                let expression: Expression = text.parse().map_err(pointed)?;
                let set = expression.resolve(resources).map_err(pointed)?.set;
                if set.nodes.is_empty() {
                    return Err(format!(
                        "--place '{}': the set has no memory; name nodes, as in node:1",
                        self.text
                    ));
                }
                set
            }
        };
        let mut policy = self.policy.on(&set, resources)?;
        // Of one node there are no turns, and the kernel needs but one mapping.
        let stride = match policy.nodes.len() {
            0 | 1 => Stride::Kernel,
            _ => self.stride,
        };
        if policy.mode == Mode::Interleave && policy.nodes.len() == 1 {
            policy = KernelPolicy::new(Mode::Preferred, policy.nodes);
        }
        Ok(Rule {
            kinds: self.kinds,
            least_bytes: self.bytes.0,
            most_bytes: self.bytes.1,
            site,
            policy,
            stride,
        })
    }
}

impl FromStr for WrittenRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A site may have colons; a policy and a set come after the last one with a space behind it.
        let (conditions, rest) = text.split_once(": ").ok_or_else(|| FORM.to_owned())?;
        let (mut heap, mut maps) = (false, false);
        let (mut least, mut most, mut site) = (1, u64::MAX, None);
        for condition in conditions.split(',').map(str::trim) {
            let size =
                |text: &str| parse_bytes(text.trim()).map_err(|why| format!("{text}: {why}"));
            match condition {
                "heap" => heap = true,
                "map" => maps = true,
                _ => {
                    if let Some(bytes) = condition.strip_prefix("size>=") {
                        least = size(bytes)?.max(1);
                    } else if let Some(bytes) = condition.strip_prefix("size<") {
                        most = size(bytes)?.checked_sub(1).ok_or("no size is below 0")?;
                    } else if let Some(words) = condition.strip_prefix("site=") {
                        site = Some(words.to_owned());
                    } else {
                        return Err(format!(
                            "`{condition}` is no condition; there are size>=BYTES, size<BYTES, \
                             site=[FILE:]FUNCTION, site=FILE+0xOFFSET, heap and map"
                        ));
                    }
                }
            }
        }
        if least > most {
            return Err(format!("`{conditions}`: no size is both; {FORM}"));
        }
        let rest = rest.trim();
        let (word, set) = rest.split_once(' ').unwrap_or((rest, ""));
        let (policy, stride) = match word.split_once(':') {
            _ if word == "blocks" => (MemoryPolicy::Striped, Stride::Blocks),
            Some(("striped", pages)) => match pages.parse() {
                Ok(pages) if pages > 0 => (MemoryPolicy::Striped, Stride::Pages(pages)),
                _ => {
                    return Err(format!(
                        "`{word}`: write a number of pages, as in striped:256"
                    ));
                }
            },
            _ => match word.parse() {
                Ok(policy) => (policy, Stride::Kernel),
                Err(_) => {
                    return Err(format!(
                        "there is no policy `{word}`; there are float, local, remote, striped, \
                         striped:PAGES, blocks, bind, preferred and weighted"
                    ));
                }
            },
        };
        let set = set.trim();
        Ok(Self {
            kinds: Kinds {
                heap: heap || !maps,
                maps: maps || !heap,
            },
            bytes: (least, most),
            site,
            policy,
            stride,
            set: (!set.is_empty()).then(|| set.to_owned()),
            text: text.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read() {
        let rule: WrittenRule = "size>=1M: striped:256 node:0 + node:1".parse().unwrap();
        assert_eq!(rule.bytes, (1 << 20, u64::MAX));
        assert_eq!(
            (rule.policy, rule.stride),
            (MemoryPolicy::Striped, Stride::Pages(256))
        );
        assert_eq!(rule.set.as_deref(), Some("node:0 + node:1"));
        assert!(rule.kinds.heap && rule.kinds.maps && rule.site.is_none());
        let rule: WrittenRule = "heap,site=lib.so:a::b,size<64K: local".parse().unwrap();
        assert_eq!(
            (rule.bytes, rule.site.as_deref()),
            ((1, 65535), Some("lib.so:a::b"))
        );
        assert!(rule.kinds.heap && !rule.kinds.maps && rule.set.is_none());
        let rule: WrittenRule = "map: blocks".parse().unwrap();
        assert!(!rule.kinds.heap && rule.kinds.maps && rule.stride == Stride::Blocks);
    }

    #[test]
    fn what_is_no_rule_is_refused_with_the_form() {
        for (text, part) in [
            ("", "CONDITION"),
            ("striped", "CONDITION"),
            ("size>=1M:striped", "CONDITION"),
            ("size>1M: striped", "no condition"),
            ("size>=1X: striped", "whole number"),
            ("size>=1M,size<1M: bind", "no size is both"),
            ("size<0: bind", "below 0"),
            ("size>=1M: stripes", "no policy `stripes`"),
            ("size>=1M: striped:0", "number of pages"),
            ("size>=1M: ", "no policy"),
        ] {
            let why = text.parse::<WrittenRule>().unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
