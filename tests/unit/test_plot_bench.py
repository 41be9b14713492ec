"""scripts/docs/plot_bench.py: the picture of a benchmark holds what it should, and the one in docs is made from its data."""

import json
import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from gguf_spec.bench import USELESS, WORKLOADS, Machine
from tests.support import children
from tests.unit.test_bench import case, report

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "docs"))
from plot_bench import Bar, Group, chart, grouped_bars  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg):
    return [element.text for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_the_picture_holds_every_case():
    cases = [case(workload.name, t) for workload in WORKLOADS for t in workload.temperatures]
    svg = chart(report(*cases).to_dict())
    said = texts(svg)
    for workload in WORKLOADS:
        assert said.count(workload.name) == len(workload.temperatures)
    assert said.count("greedy") == 6 and said.count("T = 0.8") == 4
    assert said.count("best: model 2") == 10
    assert said.count("1.20") == 10  # adaptive
    assert "t.gguf with d.gguf" in said
    assert "A <fast> & good CPU, 2 cores, 1 thread" in said
    assert [
        one
        for one in said
        if one in ("plain", "best fixed setting, in hindsight", "adaptive", USELESS)
    ] == said[3:6]


def test_nothing_is_outside_the_picture_and_no_numbers_overlap():
    cases = [
        case(workload.name, t, ours=(12, 13, 9))
        for workload in WORKLOADS
        for t in workload.temperatures
    ]
    root = ET.fromstring(chart(report(*cases, target="a-very-long-name-of-a-model-" * 5).to_dict()))
    width, height = float(root.get("width")), float(root.get("height"))
    places = []
    for element in root.iter(f"{SVG}text"):
        wide = 0.66 * float(element.get("font-size")) * len(element.text)
        x = (
            float(element.get("x"))
            - {"start": 0, "middle": wide / 2, "end": wide}[element.get("text-anchor")]
        )
        places.append((x, float(element.get("y")), wide))
        assert x >= 0 and 0 < places[-1][1] < height - 4
        assert x + wide <= width + 60 or element.get("text-anchor") == "start"
    bars = [one for one in root.iter(f"{SVG}rect") if one.get("x")]
    assert all(
        float(one.get("x")) >= 0 and float(one.get("x")) + float(one.get("width")) <= width
        for one in bars
    )
    numbers = [(x, y, wide) for x, y, wide in places if wide == 0.66 * 11 * 4]
    assert len(numbers) == 20
    for i, (x, y, wide) in enumerate(numbers):
        assert all(abs(x - x2) >= wide or abs(y - y2) >= 11 for x2, y2, _ in numbers[i + 1 :])


def test_bars_are_as_high_as_their_values():
    svg = grouped_bars(
        "t", [], ["a", "b"], [Group("g", "", "", (Bar(1.0, 1.0, 1.0), Bar(2.0, 1.5, 2.5)))]
    )
    bars = [one for one in ET.fromstring(svg).iter(f"{SVG}rect") if one.get("width") == "28.0"]
    one, two = (float(bar.get("height")) for bar in bars)
    assert two == pytest.approx(2 * one, abs=0.2)


def test_a_name_cannot_break_the_picture():
    one = report(case(), target='x"</text><script>\x00\x1b\ud800é', machine=Machine("", 1, 1))
    svg = chart(one.to_dict())
    assert "<script>" not in svg
    assert "é with d.gguf" in texts(svg)[0]
    svg.encode("utf-8")


def test_without_a_draft_model():
    assert "t.gguf, drafting from the text alone" in texts(
        chart(report(case(), draft=None).to_dict())
    )


def test_the_picture_of_the_docs_is_made_from_its_data(tmp_path):
    images = ROOT / "docs" / "images"
    command = [sys.executable, ROOT / "scripts" / "docs" / "plot_bench.py"]
    children.run([*command, images / "bench.json", tmp_path / "a.svg"], check=True)
    assert (tmp_path / "a.svg").read_bytes() == (images / "bench.svg").read_bytes()
    assert json.loads((images / "bench.json").read_text(encoding="utf-8"))["version"]
    assert children.run(command, capture_output=True, check=False).returncode == 1


def test_the_picture_of_situations_is_made_from_its_data(tmp_path):
    images = ROOT / "docs" / "images"
    command = [sys.executable, ROOT / "scripts" / "docs" / "plot_situations.py", "draw"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    children.run(
        [*command, images / "situations.json", tmp_path / "a.svg"], check=True, env=environment
    )
    assert (tmp_path / "a.svg").read_bytes() == (images / "situations.svg").read_bytes()
