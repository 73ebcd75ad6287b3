"""Numbers in words, looks that can be told apart, ticks a reader can use."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from lab.report.synthetic import CONTENDERS

from ffo.lab.report import words
from ffo.lab.report.drawing import (
    LEAST_ERROR,
    Axis,
    Dots,
    Line,
    Mark,
    dot_panel,
    line_panel,
    round_places,
    scatter_panel,
    spaced,
    swatch,
)
from ffo.lab.report.looks import COLOURS, KNOWN, PAGE, PALETTE, Look, looks, ordinal
from ffo.lab.report.results import Spread

Array = np.ndarray


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (words.seconds(0.01234), "12 ms"),
        (words.seconds(0.00001234), "12 µs"),
        (words.seconds(1.0), "1.0 s"),
        (words.seconds(99.96), "100 s"),
        (words.seconds(1234.0), "1\N{THIN SPACE}230 s"),
        (words.seconds(None), "–"),
        (words.megabytes(512.3), "512 MB"),
        (words.megabytes(6300.0), "6.3 GB"),
        (words.ratio(0.0456), "0.046×"),
        (words.ratio(13.7), "14×"),
        (words.cosine(1.0), "1"),
        (words.cosine(1 - 3e-9), "1 − 3·10⁻⁹"),
        (words.cosine(0.99989), "0.99989"),
        (words.cosine(0.62), "0.620"),
        (words.cosine(-0.2), "−0.200"),
        (words.power(9.7e-5), "10⁻⁴"),
        (words.number(-0.25), "−0.250"),
        (words.number(0.0), "0"),
        (words.number(-3e-7), "−3·10⁻⁷"),
        (words.percent(-0.0031), "−0.31%"),
        (words.percent(-1e-9), "0.00%"),
        (words.tick(0.1, "seconds"), "100 ms"),
        (words.tick(1.0, "seconds"), "1 s"),
        (words.tick(3000.0, "megabytes"), "3 GB"),
        (words.tick(-1.5, "number"), "−1.5"),
        (words.listing(["a", "b", "c"]), "a, b and c"),
    ],
)
def test_numbers_in_words(written: str, expected: str) -> None:
    assert written == expected


def linear(colour: str) -> Array:
    """(3,) intensities of light of an sRGB colour."""
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def cielab(light: Array) -> Array:
    """(3,) CIELAB coordinates, in which distances are about as large as they are seen."""
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    xyz = np.array(to_xyz) @ np.clip(light, 0, 1) / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


#: Machado, Oliveira and Fernandes (2009), at full severity, on linear RGB
VISION = {
    "common": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_colours_stay_apart_for_every_reader(vision: str, scheme: int) -> None:
    series = ["blue", "vermillion", *COLOURS]
    seen = {name: cielab(np.array(VISION[vision]) @ linear(PALETTE[name][scheme])) for name in series}
    distances = {(a, b): np.linalg.norm(seen[a] - seen[b]) for a, b in itertools.combinations(series, 2)}
    assert min(distances.values()) > 11, min(distances.items(), key=lambda item: item[1])


def luminance(colour: str) -> float:
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["page", "card"])
def test_colours_stand_out_from_what_they_stand_on(ground: str, scheme: int) -> None:
    """WCAG: 4.5 for text, 3 for graphics, which stand on the page; grid and cards are decoration."""
    below = luminance(PAGE[scheme] if ground == "page" else PALETTE["card"][scheme])
    for name in PALETTE.keys() - {"grid", "card"}:
        own = luminance(PALETTE[name][scheme])
        contrast = (max(own, below) + 0.05) / (min(own, below) + 0.05)
        text = name in ("ink", "muted", "good", "bad", "link")
        assert contrast >= (4.5 if text else 3.0 if ground == "page" else 1.0), name


def test_no_two_methods_share_colour_and_marker() -> None:
    ours = [f"{base}{way}" for base in ("FFOCP", "FFOQP") for way in ("", " iterative", " resolve", " direct")]
    names = {*KNOWN, *ours, *(c.name for c in CONTENDERS), "Unknown A", "Unknown B", "Unknown C"}
    found = looks(names)
    assert set(found) == names
    assert len({(look.colour, look.marker) for look in found.values()}) == len(names)
    assert {found[name].colour for name in ours} == {"blue", "vermillion"}
    sweep = ordinal(str(value) for value in range(10))
    assert len({(look.colour, look.marker) for look in sweep.values()}) == 10


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.2), (1e-3, 9e-3), (0.01, 2.0), (1e-16, 1.0), (3e-4, 700.0)])
def test_ticks_of_a_log_axis(low: float, high: float) -> None:
    low, high = (low / 3, high * 3) if high / low < 10 else (low, high)
    places = round_places(low, high, 6)
    assert 2 <= len(places) <= 7
    assert all(low <= place <= high for place in places)
    assert places == sorted(places)


def test_ticks_of_sizes_leave_room_for_labels() -> None:
    assert spaced([50, 100, 200, 500, 800, 1000]) == [50, 100, 200, 500, 1000]
    assert spaced([200.0]) == [200.0]


def test_an_error_of_zero_is_drawn_at_the_end_of_the_axis() -> None:
    exact = Line("exact", Look("blue", "o"), [0, 1], [Spread(0.0, 0.0, 0.0, 1), Spread(1e-9, 0.0, 1e-8, 2)])
    panel = line_panel("p", "Errors", [exact], Axis("step", "size"), Axis("error", "error", log=True))
    assert words.number(LEAST_ERROR) in panel.alt
    assert "nan" not in panel.svg.lower()


def test_dots_without_a_time_carry_their_reason() -> None:
    timed = Dots("fast", Look("blue", "o"), Spread(0.5, 0.4, 0.6, 3), wrong=True)
    lost = Dots("lost", Look("pink", "v"), None, note="out of memory")
    panel = dot_panel("p", "Costs", [lost, timed], Axis("time per step", "seconds", log=True))
    assert panel.alt == "Costs: time per step. fast 500 ms, gradient wrong; lost: out of memory"
    assert ">out of memory</text>" in panel.svg
    assert ">500 ms ✗</text>" in panel.svg
    only_lost = dot_panel("p", "Costs", [lost], Axis("time per step", "seconds", log=True))
    assert ">out of memory</text>" in only_lost.svg
    assert " ms</text>" not in only_lost.svg


def test_one_point_has_one_tick() -> None:
    """After one epoch there is no half epoch."""
    line = Line("a", Look("blue", "o"), [1.0], [Spread(-0.4, -0.4, -0.4, 1)])
    svg = line_panel("p", "Loss", [line], Axis("epoch", "size"), Axis("loss")).svg
    assert svg.count(">1</text>") == 1
    assert ">0.96</text>" not in svg


def test_points_above_the_bar_and_of_the_wrong_length_are_named() -> None:
    points = [Mark("exact", Look("blue", "o"), 0.5, 0.0), Mark("mean", Look("pink", "v"), 0.1, 1e-12, "wrong length")]
    panel = scatter_panel("p", "T", points, Axis("t", "seconds", log=True), Axis("e", "error", log=True), 1e-4, "wrong")
    assert panel.alt == "T: e against t. exact at 500 ms and 10⁻¹⁶; mean at 100 ms and 10⁻¹², wrong length"
    assert ">wrong length</text>" in panel.svg
    assert ">wrong</text>" in panel.svg


def test_text_of_figures_is_text_and_never_mathematics() -> None:
    line = Line("a$b$", Look("blue", "o"), [1, 2], [Spread(1.0, 1.0, 1.0, 1)] * 2)
    panel = line_panel("A name (with signs)", "Cost in $ & <tags>", [line], Axis("x"), Axis("y"))
    assert "Cost in $ &amp; &lt;tags&gt;</text>" in panel.svg
    assert 'id="a-name-with-signs-' in panel.svg


def test_swatch_shows_colour_marker_and_dash() -> None:
    plain, dashed = swatch(Look("blue", "o")), swatch(Look("green", "p", (5, 2), filled=False))
    assert "var(--blue)" in plain
    assert "dasharray" not in plain
    assert 'stroke-dasharray="7 2.8"' in dashed
    assert 'fill="var(--page)"' in dashed
