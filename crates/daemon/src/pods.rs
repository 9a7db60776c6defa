//! Pods and containers, as the path of a control group tells them.
//!
//! The kubelet names a pod's group after its number, with `-` as `_` where systemd makes the groups; the
//! container runtime names the container's group below it after the container. Source of the layouts:
//! `fixtures/cgroups/`.

/// What a path tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub struct Container {
    /// Number of the pod; empty where there is none.
    pub pod_uid: String,
    /// Number of the container; empty where there is none.
    pub container_id: String,
    /// Who runs it: `containerd`, `cri-o`, `docker`, `podman`; empty where nobody is told.
    pub runtime: String,
}

/// Prefixes of a container's group, with who makes it.
const RUNTIMES: [(&str, &str); 5] = [
    ("cri-containerd-", "containerd"),
    ("crio-", "cri-o"),
    ("docker-", "docker"),
    ("libpod-payload-", "podman"),
    ("libpod-", "podman"),
];

impl Container {
    /// Of a control group, named as in `/proc/PID/cgroup`.
    #[must_use]
    pub fn of_group(path: &str) -> Self {
        let mut found = Self::default();
        let mut before = "";
        // A runtime that is told a systemd slice and makes groups itself joins names by `:`.
        for part in path.trim_end_matches(" (deleted)").split(['/', ':']) {
            let name = part
                .strip_suffix(".scope")
                .or_else(|| part.strip_suffix(".slice"));
            let name = name.unwrap_or(part);
            if let Some(pod) = pod(name) {
                found.pod_uid = pod;
            } else if let Some((id, runtime)) = container(name, before, !found.pod_uid.is_empty()) {
                (found.container_id, found.runtime) = (id.to_owned(), runtime.to_owned());
            }
            before = part;
        }
        found
    }
}

/// `kubepods-burstable-podUID`, `kubelet-kubepods-podUID`, `podUID`.
fn pod(name: &str) -> Option<String> {
    let uid = match name.strip_prefix("pod") {
        Some(uid) => uid,
        None if name.contains("kubepods") => name.rsplit_once("-pod")?.1,
        None => return None,
    };
    let uid = uid.replace('_', "-");
    let is_hex = |letter: char| letter.is_ascii_hexdigit() || letter == '-';
    // A static pod's number is 32 digits, without dashes.
    let is_uid = matches!(uid.len(), 32 | 36) && uid.chars().all(is_hex);
    is_uid.then_some(uid)
}

/// `cri-containerd-ID`, or ID alone below what tells that it is one.
fn container<'a>(name: &'a str, above: &str, in_pod: bool) -> Option<(&'a str, &'static str)> {
    let is_id = |id: &str| id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    for (prefix, runtime) in RUNTIMES {
        if let Some(id) = name.strip_prefix(prefix)
            && is_id(id)
        {
            return Some((id, runtime));
        }
    }
    let runtime = match above {
        "docker" => "docker",
        "cri-containerd" => "containerd",
        "crio" => "cri-o",
        _ if in_pod => "",
        _ => return None,
    };
    is_id(name).then_some((name, runtime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captured_layouts_are_known() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/cgroups/expected.tsv"
        );
        let text = std::fs::read_to_string(file).unwrap();
        let rows = text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.starts_with("path\t"));
        let mut count = 0;
        for row in rows {
            let fields: Vec<&str> = row.split('\t').collect();
            let [path, pod_uid, container_id, runtime] = fields[..] else {
                panic!("four fields: {row}");
            };
            let found = Container::of_group(path);
            let found = (&*found.pod_uid, &*found.container_id, &*found.runtime);
            assert_eq!(found, (pod_uid, container_id, runtime), "{path}");
            count += 1;
        }
        assert!(count > 50, "{count}");
    }
}
