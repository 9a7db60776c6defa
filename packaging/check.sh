#!/bin/bash
# Checks the files of this folder that other systems use. What a missing tool cannot check is told as skipped.
#
#     packaging/check.sh            what works without a network
#     packaging/check.sh --types    also the dashboard against Grafana's types (npm fetches them)
#
# Tools: python3 with yaml; promtool (Debian: prometheus); shellcheck; kubernetes-validate (PyPI); npm.
set -uo pipefail

cd "$(dirname "$0")" || exit 2
types=no
[ "${1:-}" != --types ] || types=yes
passed=0
failed=0
skipped=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

check() {
  local what=$1
  shift
  if "$@" > "$work/out" 2>&1; then
    passed=$((passed + 1))
    echo "ok: $what"
  else
    failed=$((failed + 1))
    echo "FAILED: $what"
    sed 's/^/    /' "$work/out"
  fi
}

skip() {
  skipped=$((skipped + 1))
  echo "skipped: $1 ($2)"
}

has() { command -v "$1" > /dev/null; }

cat > "$work/check.py" << 'END'
"""Checks of files in packaging/ that need no schema from elsewhere; the word says which."""
import json
import pathlib
import re
import sys

DASHBOARD = pathlib.Path("grafana/hither.json")


def strings(value):
    """All texts of a JSON value, with the keys that hold them."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(inner, str):
            yield key, inner
        elif isinstance(inner, (dict, list)):
            yield from strings(inner)


def expressions():
    """The PromQL of the dashboard, its variables replaced."""
    for key, text in strings(json.loads(DASHBOARD.read_text())):
        if key == "expr":
            text = re.sub(r"\$__(rate_interval|range|interval)", "5m", text)
            yield re.sub(r"\$(target|user|instance)", ".*", text)


def yaml():
    import yaml as library

    for path in sorted(pathlib.Path().rglob("*.y*ml")):
        documents = list(library.safe_load_all(path.read_text()))
        assert documents and all(documents), f"{path}: an empty document"


def manifest():
    import tomllib

    import yaml as library

    documents = list(library.safe_load_all(pathlib.Path("kubernetes/daemonset.yaml").read_text()))
    by_kind = {document["kind"]: document for document in documents}
    kinds = {"Namespace", "ServiceAccount", "ConfigMap", "DaemonSet", "NetworkPolicy"}
    assert set(by_kind) == kinds and len(documents) == len(kinds), sorted(by_kind)
    config = tomllib.loads(by_kind["ConfigMap"]["data"]["hither.toml"])
    assert config["format"] == "hither.daemon/1" and config["target"], config
    pod = by_kind["DaemonSet"]["spec"]["template"]["spec"]
    assert pod["hostPID"] and not pod["automountServiceAccountToken"]
    names = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"], container["name"]
        assert rights["capabilities"]["drop"] == ["ALL"], container["name"]
        assert "limits" in container["resources"], container["name"]
        assert {mount["name"] for mount in container.get("volumeMounts", [])} <= names, container["name"]
    patch = library.safe_load(pathlib.Path("kubernetes/hint-faults.yaml").read_text())
    patched = {container["name"] for container in patch["spec"]["template"]["spec"]["containers"]}
    assert patched <= {container["name"] for container in pod["containers"]}, patched


def dashboard():
    board = json.loads(DASHBOARD.read_text())
    assert board["schemaVersion"] >= 36 and board["uid"] and board["title"]
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert {"datasource", "target", "user"} <= set(names), names
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)), "panels share an id"
    cells = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                other = cells.setdefault((x, y), panel["title"])
                assert other == panel["title"], f"{other} and {panel['title']} overlap"
        if panel["type"] == "row":
            continue
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        queries = panel["targets"]
        assert queries and all(query["expr"] for query in queries), panel["title"]
        assert len({query["refId"] for query in queries}) == len(queries), panel["title"]
    used = {word for _, text in strings(board) for word in re.findall(r"\$\{?([a-z]+)\}?", text)}
    assert used <= set(names), f"unknown variables: {used - set(names)}"


def promql():
    """A rule file of the dashboard's expressions, for promtool."""
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions())]
    print(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))


def metrics():
    """Every metric that the files name is one that the daemon has."""
    source = "\n".join(path.read_text() for path in pathlib.Path("../crates/daemon/src").rglob("*.rs"))
    known = set(re.findall(r'"(hither_[a-z_]+)"', source))
    text = "\n".join(expressions()) + pathlib.Path("prometheus/rules.yml").read_text()
    text += "\n".join(text for _, text in strings(json.loads(DASHBOARD.read_text())["templating"]))
    used = set(re.findall(r"(?<![:a-z_])hither_[a-z_]+", text)) - {"hither_local_access", "hither_own_cpu"}
    missing = {name for name in used if name not in known and name.removesuffix("_total") not in known}
    assert not missing, f"the daemon has no {sorted(missing)}"


def groups():
    """The lines of fixtures/cgroups and the expectations are the same paths."""
    folder = pathlib.Path("../fixtures/cgroups")
    lines = [
        line.removeprefix("0::")
        for path in sorted(folder.glob("*.txt"))
        if path.name != "hybrid.txt"
        for line in path.read_text().splitlines()
        if not line.startswith("#")
    ]
    head, *rows = [line.split("\t") for line in (folder / "expected.tsv").read_text().splitlines()]
    assert head == ["path", "pod_uid", "container_id", "runtime"], head
    assert sorted(lines) == sorted(row[0] for row in rows), set(lines) ^ {row[0] for row in rows}
    for path, pod, container, runtime in rows:
        assert re.fullmatch(r"|[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", pod), path
        assert re.fullmatch(r"|[0-9a-f]{64}", container) and container in path, path
        assert pod.replace("-", "") in path.replace("-", "").replace("_", ""), path
        assert runtime in ("", "containerd", "cri-o", "docker", "podman") and (container or not runtime), path


def typescript():
    """The dashboard as a program that only compiles if Grafana's types allow it."""
    modules = {
        "timeseries": "timeseries",
        "stat": "stat",
        "table": "table",
        "state-timeline": "statetimeline",
        "barchart": "barchart",
    }
    sdk = "@grafana/grafana-foundation-sdk"
    for module in ["dashboard", "prometheus", *modules.values()]:
        print(f'import * as {module} from "{sdk}/{module}";')
    print(
        """
// Enumerations are taken by their texts and numbers, as JSON has them.
type Loose<T> = T extends (infer E)[] ? Loose<E>[] : T extends object ? {[K in keyof T]: Loose<T[K]>}
  : T extends string ? T | `${T}` : T extends number ? number : T;
type Query = Loose<Omit<prometheus.Dataquery, "_implementsDataqueryVariant">>;
type Annotation = Loose<dashboard.AnnotationQuery> & {expr?: string; titleFormat?: string; textFormat?: string};
type Fields<C> = Omit<Loose<dashboard.FieldConfig>, "custom"> & {custom?: Loose<C>};
type Of<O, C> = Omit<Loose<dashboard.Panel>, "targets" | "options" | "fieldConfig"> & {
  targets: Query[]; options: Loose<O>;
  fieldConfig: Omit<Loose<dashboard.FieldConfigSource>, "defaults"> & {defaults: Fields<C>}};"""
    )
    board = json.loads(DASHBOARD.read_text())
    panels = board.pop("panels")
    annotations = board["annotations"].pop("list")
    print(f"const board: Loose<dashboard.Dashboard> = {json.dumps(board)};")
    print(f"const annotations: Annotation[] = {json.dumps(annotations)};")
    for panel in panels:
        module = modules.get(panel["type"])
        fields = f"{module}.FieldConfig" if module not in ("stat", "table") else "{}"
        kind = "Loose<dashboard.RowPanel>" if panel["type"] == "row" else f"Of<{module}.Options, {fields}>"
        print(f"const panel{panel['id']}: {kind} = {json.dumps(panel)};")


globals()[sys.argv[1]]()
END

script() { python3 "$work/check.py" "$1"; }

# The dashboard's expressions, as rules that promtool reads.
promql() { script promql > "$work/dashboard.json" && promtool check rules "$work/dashboard.json"; }

types_of_grafana() {
  script typescript > "$work/board.ts" || return
  printf '%s' '{"compilerOptions": {"module": "nodenext", "moduleResolution": "nodenext", "strict": true,
    "noEmit": true, "skipLibCheck": true, "types": []}, "files": ["board.ts"]}' > "$work/tsconfig.json"
  (cd "$work" && npm init -y && npm install --no-audit --no-fund --ignore-scripts \
    @grafana/grafana-foundation-sdk@0.0.21 typescript && node_modules/.bin/tsc -p .)
}

if ! has python3; then
  skip "YAML, manifest, dashboard and fixtures" "no python3"
else
  check "the dashboard is JSON with panels, queries and variables in order" script dashboard
  check "fixtures/cgroups and its expectations name the same paths" script groups
  if python3 -c 'import yaml' 2> /dev/null; then
    check "all YAML files parse" script yaml
    check "the manifest for Kubernetes has its parts, with the rights that it should have" script manifest
  else
    skip "all YAML files parse" "no python3-yaml"
    skip "the manifest for Kubernetes has its parts" "no python3-yaml"
  fi
  if grep -rqs hither_build_info ../crates/daemon/src; then
    check "the daemon has every metric that dashboard and rules name" script metrics
  else
    skip "the daemon has every metric that dashboard and rules name" "no source of the daemon here"
  fi
fi

if has promtool; then
  check "the rules are right" promtool check rules prometheus/rules.yml
  check "the rules do what their tests say" promtool test rules prometheus/rules-test.yml
  check "the scrape configuration is right" promtool check config --syntax-only prometheus/scrape.yml
  if has python3; then
    check "the dashboard's queries are PromQL" promql
  fi
else
  for what in "the rules are right" "the rules do what their tests say" "the scrape configuration is right" \
    "the dashboard's queries are PromQL"; do
    skip "$what" "no promtool; Debian: apt-get install prometheus"
  done
fi

if has kubernetes-validate; then
  check "the manifest fits the schemas of Kubernetes 1.30" \
    kubernetes-validate --strict -k 1.30.0 kubernetes/daemonset.yaml
  check "the manifest fits the newest schemas that are here" kubernetes-validate --strict kubernetes/daemonset.yaml
else
  skip "the manifest fits the schemas of Kubernetes" "no kubernetes-validate; pip install kubernetes-validate"
fi

if has shellcheck; then
  check "the scripts pass shellcheck" shellcheck check.sh slurm/prolog.sh slurm/epilog.sh slurm/test.sh
else
  skip "the scripts pass shellcheck" "no shellcheck"
fi

if [ "$types" = no ]; then
  skip "the dashboard fits Grafana's types" "only with --types"
elif has npm; then
  check "the dashboard fits Grafana's types (grafana-foundation-sdk 0.0.21)" types_of_grafana
else
  skip "the dashboard fits Grafana's types" "no npm"
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
