"""Drawings: texts stay within the room they have, and hide no other."""

from xml.etree.ElementTree import Element

from ulak.kit.drawings import Drawing, measure_bubble


def texts(svg: Element) -> list[tuple[str, str, float]]:
    """Return each text with its class and the size of its font."""
    return [
        (each.text or "", each.attrib["class"], float(each.get("font-size", 15)))
        for each in svg.iter("text")
    ]


def test_boxes_and_lines_have_their_places_and_styles() -> None:
    drawing = Drawing(".drawing .room { fill: #fff }")
    drawing.box((10, 20, 110.25, 70), "room", radius=3)
    drawing.line((10, 20), (110, 70), "wall", width=1.5)
    svg = drawing.finish(200, 100)
    assert svg.get("viewBox") == "0 0 200 100"
    style, box, line = svg
    assert ".drawing .room { fill: #fff }" in (style.text or "")
    assert box.attrib == {
        "class": "room", "x": "10.0", "y": "20.0", "width": "100.2", "height": "50.0", "rx": "3.0",
    }  # fmt: skip
    assert line.attrib == {
        "class": "wall", "x1": "10.0", "y1": "20.0", "x2": "110.0", "y2": "70.0",
        "stroke-width": "1.5",
    }  # fmt: skip


def test_of_several_ways_to_write_into_a_box_the_largest_is_taken() -> None:
    ways = [("kitchen", "3 x 2 m"), ("kitchen 3 x 2 m",)]
    for box, lines in (((0, 0, 100, 60), 2), ((0, 0, 300, 16), 1)):
        drawing = Drawing("")
        drawing.write_inside(box, ways)
        found = texts(drawing.finish(300, 100))
        assert [text for text, _, _ in found] == list(ways[0 if lines == 2 else 1])
        assert all(10 < size <= 20 for _, _, size in found)


def test_a_narrow_box_has_its_text_upright() -> None:
    drawing = Drawing("")
    drawing.write_inside((0, 0, 20, 300), [("a stile",)])
    (text,) = drawing.finish(300, 300).iter("text")
    assert text.attrib["transform"] == "rotate(-90 10.0 150.0)"


def test_a_text_without_room_has_a_number_and_a_line_of_the_legend() -> None:
    drawing = Drawing("")
    for left in (0, 40):
        drawing.write_inside((left, 0, left + 30, 20), [("a long name", "3 x 2 m")])
    assert drawing.write_legend(100, 400) == 128
    found = [(text, style) for text, style, _ in texts(drawing.finish(400, 128))]
    assert found == [("#1", "inside"), ("#1", "inside"), ("#1: a long name, 3 x 2 m", "said")]
    assert Drawing("").write_legend(100, 400) == 100


def test_a_bubble_hides_no_text_where_there_is_another_place() -> None:
    drawing = Drawing("")
    drawing.write_inside((0, 0, 100, 60), [("kitchen",)])
    drawing.mark("1", [(50, 30), (150, 30)], size=11)
    drawing.mark("2", [(50, 30)], size=11)
    bubbles = [float(each.attrib["x"]) for each in drawing.finish(200, 100).iter("rect")]
    half = measure_bubble("1", 11)
    assert bubbles == [round(150 - half, 1), round(50 - half, 1)]


def test_a_line_ends_where_its_room_does_and_holds_nothing_that_is_not_to_be_seen() -> None:
    drawing = Drawing("")
    drawing.write_line(0, 20, "so much to say\x00" * 20, room=200, style="title")
    ((text, style, _),) = texts(drawing.finish(200, 100))
    assert style == "said title"
    assert len(text) < 40
    assert text.endswith("\u2026")
    assert "\x00" not in text
