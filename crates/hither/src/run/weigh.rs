//! `--weights`: as words, and what came of them.

use hither_agent::host::weighing::{Source, Weighed};
use hither_core::bind::Weights;
use serde_json::json;

/// `kernel`, `hmat`, `measured`, `3:1`.
pub fn parse(text: &str) -> Result<Source, String> {
    match text {
        "kernel" => Ok(Source::Kernel),
        "hmat" => Ok(Source::Hmat),
        "measured" => Ok(Source::Measured),
        _ if text.starts_with(|first: char| first.is_ascii_digit()) => {
            Ok(Source::Given(text.to_owned()))
        }
        _ => Err(format!(
            "`{text}` is neither kernel, hmat, measured, nor a weight for each node as in 3:1"
        )),
    }
}

/// `placed.weights` of hither.run/1.
pub fn json(weighed: &Weighed) -> serde_json::Value {
    let weights = weighed.weights.iter().flat_map(Weights::iter);
    let weights = weights.map(|(node, weight)| json!({"node": node, "weight": weight}));
    let measured = weighed.measured.as_ref().map(|measured| {
        let alone = measured.alone.iter();
        let alone = alone.map(|(node, gbs)| json!({"node": node, "read_gbs": gbs}));
        json!({
            "alone": alone.collect::<Vec<_>>(),
            "together_gbs": measured.together,
            "near": measured.near.to_string(),
            "near_gbs": measured.near_gbs,
            "refused": !measured.pays(),
        })
    });
    let watched = weighed.guarded.as_ref().map(|guarded| {
        json!({
            "reach": guarded.reach.to_string(),
            "changes": guarded.changes,
            "moved_pages": guarded.moved_pages,
            "refused_pages": guarded.refused_pages,
        })
    });
    json!({
        "set": weights.collect::<Vec<_>>(),
        "measured": measured,
        "watched": watched,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_come_from_somewhere_or_are_said() {
        assert_eq!(parse("kernel"), Ok(Source::Kernel));
        assert_eq!(parse("hmat"), Ok(Source::Hmat));
        assert_eq!(parse("measured"), Ok(Source::Measured));
        assert_eq!(parse("3:1"), Ok(Source::Given("3:1".to_owned())));
        for bad in ["", "auto", ":1", "-1:2"] {
            assert!(parse(bad).unwrap_err().contains("as in 3:1"), "{bad}");
        }
    }
}
