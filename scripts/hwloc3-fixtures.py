#!/usr/bin/env python3
"""usage: hwloc3-fixtures.py
Turns some files of fixtures/hwloc/ (hwloc 2.9) into what hwloc 3.0 writes of the same machine, into
fixtures/hwloc3/: by its hwloc/topology-xml.c, field by field.

  page_type of nodes        gone; sizes alone are in the info PageSizes of the topology
  gp_index                  an id is behind it
  infos of the file itself  at the end of the topology, not in the machine
  pci_type, osdev_type      the programming interface is behind the revision; a set of kinds
  memtier                   of nodes with a bandwidth, where these differ; the highest first
"""
import pathlib
import re

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures"
OF_FILE = ("Backend", "hwlocVersion", "ProcessName")
# Block, GPU, Net, OpenFabrics, DMA, CoProc, by their numbers in hwloc 2.
OS_DEVICES = {"0": 1, "1": 4, "2": 16, "3": 48, "4": 64, "5": 8}


def tiers(text):
    """memtier lines: HBM (1), DRAM (2), CXL (32), as one machine here has them."""
    nodes = dict(re.findall(r'type="NUMANode" os_index="(\d+)".*?gp_index="(\d+)"', text))
    by_gp = {gp: int(node) for node, gp in nodes.items()}
    bandwidth = re.search(r'<memattr name="Bandwidth".*?</memattr>', text, re.S)
    values = re.findall(r'gp_index="(\d+)" value="(\d+)"', bandwidth[0]) if bandwidth else []
    order = sorted(values, key=lambda one: -int(one[1]))
    if len({value for _, value in order}) < 2:
        return ""
    kind = {0: 2, 1: 1, 2: 32}
    line = '  <memtier kinds="{}" nodeset="{:#010x}"/>\n'
    return "".join(line.format(kind[by_gp[gp]], 1 << by_gp[gp]) for gp, _ in order)


def converted(text):
    sizes = sorted({int(size) for size in re.findall(r'<page_type size="(\d+)"', text)})
    text = re.sub(r" *<page_type .*?/>\n", "", text)
    # A node without anything in it is one tag.
    text = re.sub(r'(<object type="NUMANode"[^>]*[^/])>\n *</object>', r"\1/>", text)
    infos = []
    for name in OF_FILE:
        pattern = rf'  (  <info name="{name}" value=".*?"/>\n)'
        infos += re.findall(pattern, text)[:1]
        text = re.sub(pattern, "", text, count=1)
    infos = [info.replace('"2.9.0"', '"3.0.0"') for info in infos]
    page_sizes = ",".join(map(str, sizes))
    infos.append(f'  <info name="PageSizes" value="{page_sizes}"/>\n')
    is_object = r'(<object [^>]*gp_index="(\d+)")'
    text = re.sub(is_object, r'\1 id="obj\2"', text)
    text = re.sub(r'(pci_type="[^"]*)"', r'\1 00"', text)
    text = re.sub(r'osdev_type="(\d)"', lambda m: f'osdev_type="{OS_DEVICES[m[1]]}"', text)
    text = text.replace('<topology version="2.0">', '<topology version="3.0">')
    return text.replace("</topology>", "".join(infos) + tiers(text) + "</topology>")


for name in ("hbm-and-cxl", "memory-less", "two-socket"):
    text = (FIXTURES / "hwloc" / f"{name}.xml").read_text()
    (FIXTURES / "hwloc3" / f"{name}.xml").write_text(converted(text))
