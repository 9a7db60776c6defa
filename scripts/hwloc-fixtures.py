#!/usr/bin/env python3
"""usage: hwloc-fixtures.py [--into DIR] [TREE...]
Has lstopo (Debian's hwloc-nox) write captured machines as XML: TREE/.. of each TREE, a folder with
sys and proc, to DIR/NAME.xml. Without trees those of fixtures/machines/, without DIR
fixtures/hwloc/. With --into the completed trees are left beside the files, as DIR/NAME/.

hwloc reads other files of sysfs than hither: masks where hither reads lists. A captured tree has
what its capture kept, so a copy of it is completed before lstopo sees it, by what the two forms of
one fact say of one another (Documentation/ABI/stable/sysfs-devices-system-cpu and -node):

  cpuN/topology/core_cpus, thread_siblings, their _list   each from the other
  cpuN/topology/package_cpus           CPUs with the same physical_package_id, which need not be known
  cpuN/cache/indexM/shared_cpu_map, shared_cpu_list       each from the other
  nodeN/cpumap, cpulist                                   each from the other
  cpuN/, cpuN/online                   of CPUs that are present and not online
  cpu/online                           CPUs whose folder has topology/, where an old kernel has no file
  node/online                          nodes that have a folder, likewise; without any no node/
  local_cpus of a PCI device           CPUs of its numa_node

A NUL at the end of a file, which an old hwloc-gather-topology left there, is taken away.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def members(text):
    """Numbers of a list like 0-3,8."""
    found = set()
    for part in text.strip().split(","):
        if part:
            low, _, high = part.partition("-")
            found.update(range(int(low), int(high or low) + 1))
    return found


def as_list(numbers):
    text, numbers = [], sorted(numbers)
    while numbers:
        last = next(i for i, n in enumerate(numbers) if n + 1 not in numbers[i:i + 2])
        text.append(str(numbers[0]) if last == 0 else f"{numbers[0]}-{numbers[last]}")
        numbers = numbers[last + 1:]
    return ",".join(text) + "\n"


def mask_members(text):
    """Numbers of a mask like 00000000,0000000f."""
    bits = int(text.strip().replace(",", "") or "0", 16)
    return {n for n in range(bits.bit_length()) if bits >> n & 1}


def as_mask(numbers):
    bits, words = sum(1 << n for n in numbers), []
    while bits or not words:
        words.append(f"{bits & 0xffffffff:08x}")
        bits >>= 32
    return ",".join(reversed(words)) + "\n"


def complete(folder, mask, listing):
    """Writes whichever of the two files is missing."""
    mask, listing = folder / mask, folder / listing
    if mask.exists() and not listing.exists():
        listing.write_text(as_list(mask_members(mask.read_text())))
    elif listing.exists() and not mask.exists():
        mask.write_text(as_mask(members(listing.read_text())))


def complete_tree(tree):
    for folder, _, files in os.walk(tree):
        for name in files:
            path = pathlib.Path(folder, name)
            if path.is_symlink() or path.stat().st_size > 1 << 16:
                continue
            data = path.read_bytes()
            if data.endswith(b"\n\0"):
                path.write_bytes(data.rstrip(b"\0"))
    cpus = tree / "sys/devices/system/cpu"
    known = {int(p.parent.name[3:]): p for p in cpus.glob("cpu[0-9]*/topology")}
    if not (cpus / "online").exists():
        (cpus / "online").write_text(as_list(known))
    online = members((cpus / "online").read_text())
    present = cpus / "present"
    for cpu in (members(present.read_text()) if present.exists() else set()) - online:
        (cpus / f"cpu{cpu}").mkdir(exist_ok=True)
        (cpus / f"cpu{cpu}/online").write_text("0\n")
    nodes = tree / "sys/devices/system/node"
    numbers = [int(p.name[4:]) for p in nodes.glob("node[0-9]*")]
    if numbers and not (nodes / "online").exists():
        (nodes / "online").write_text(as_list(numbers))
    elif nodes.exists() and not numbers:
        shutil.rmtree(nodes)
    packages = {}
    for cpu in online:
        folder = cpus / f"cpu{cpu}/topology"
        folder.mkdir(parents=True, exist_ok=True)
        for mask, listing in [("core_cpus", "core_cpus_list"),
                              ("thread_siblings", "thread_siblings_list")]:
            complete(folder, mask, listing)
        number = folder / "physical_package_id"
        packages.setdefault(number.read_text() if number.exists() else None, set()).add(cpu)
    for together in packages.values():
        for cpu in together:
            folder = cpus / f"cpu{cpu}/topology"
            if not (folder / "package_cpus").exists() and not (folder / "core_siblings").exists():
                (folder / "package_cpus").write_text(as_mask(together))
    for folder in cpus.glob("cpu[0-9]*/cache/index*"):
        complete(folder, "shared_cpu_map", "shared_cpu_list")
    for folder in tree.glob("sys/devices/system/node/node[0-9]*"):
        complete(folder, "cpumap", "cpulist")
    for device in tree.glob("sys/bus/pci/devices/*"):
        number, near = device / "numa_node", device / "local_cpus"
        if number.exists() and not near.exists():
            node = nodes / f"node{number.read_text().strip()}/cpulist"
            near.write_text(as_mask(members(node.read_text()) if node.exists() else online))


def main():
    os.chdir(pathlib.Path(__file__).resolve().parent.parent)
    words = sys.argv[1:]
    if "-h" in words or "--help" in words:
        sys.exit(__doc__)
    into = None
    if words[:1] == ["--into"]:
        into, words = pathlib.Path(words[1]), words[2:]
    trees = [pathlib.Path(word) for word in words] or sorted(pathlib.Path("fixtures/machines").iterdir())
    output = into or pathlib.Path("fixtures/hwloc")
    output.mkdir(parents=True, exist_ok=True)
    failed = []
    for tree in trees:
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder, tree.name)
            shutil.copytree(tree, copy, symlinks=True)
            complete_tree(copy)
            # Only what Linux tells below this folder; nothing of this machine (CPUID, libpci).
            settings = {"HWLOC_FSROOT": str(copy), "HWLOC_THISSYSTEM": "0",
                        "HWLOC_COMPONENTS": "linux,stop", "HWLOC_XML_EXPORT_SUPPORT": "0"}
            target = output / f"{tree.name}.xml"
            target.unlink(missing_ok=True)
            done = subprocess.run(["lstopo-no-graphics", "--disallowed", "--of", "xml", target],
                                  env=os.environ | settings, capture_output=True, text=True)
            if done.stderr or done.returncode:
                print(f"{tree.name}: {done.stderr.strip()}", file=sys.stderr)
            if not target.exists():
                failed.append(tree.name)
            elif into:
                shutil.rmtree(into / tree.name, ignore_errors=True)
                shutil.copytree(copy, into / tree.name, symlinks=True)
    if failed:
        print("lstopo does not read:", " ".join(failed), file=sys.stderr)


main()
