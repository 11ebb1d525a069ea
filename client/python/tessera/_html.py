"""Parts that pictures share: colours, bytes as people read them, and the frame around a picture.

Every picture is one <div> with inline styles and inline SVG: no script, no style sheet and no file beside it, so it shows
in a notebook that isn't trusted, in a page and in a mail. Text takes the colour of the page, dark or light.
"""

from __future__ import annotations

_PALETTE = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#3f9c9c", "#b8901f", "#9c755f")
_MONO = "ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def escape(text: str) -> str:
    from html import escape as escaped      # not before there is a picture
    return escaped(text)


def colour(number: int) -> str:
    """A colour on which white text is read; the first ones are told apart at once, later ones by hue."""
    if number < len(_PALETTE):
        return _PALETTE[number]
    import colorsys
    red, green, blue = colorsys.hls_to_rgb(number * 0.618034 % 1, 0.45, 0.45)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def bytes_text(count: float) -> str:
    """1536 as "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" or abs(count) >= 100 or count == int(count) else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def seconds_text(seconds: float) -> str:
    """0.0042 as "4.2 ms"."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1 or unit == "µs":
            return f"{seconds * factor:.3g} {unit}"
    raise AssertionError


def frame(*parts: str) -> str:
    return f'<div style="font:12px/1.45 sans-serif;margin:4px 0">{"".join(parts)}</div>'


def headline(*parts: str) -> str:
    """The first line; the first part stands out. Parts are escaped."""
    first, *rest = (escape(part) for part in parts)
    said = "".join(f' <span style="opacity:.5">&middot;</span> {part}' for part in rest)
    return f'<div style="margin-bottom:4px"><b style="font-family:{_MONO}">{first}</b>{said}</div>'


def note(text: str) -> str:
    return f'<div style="opacity:.75;margin:2px 0">{escape(text)}</div>'


def warning(text: str) -> str:
    return f'<div style="color:#c0392b;margin:2px 0">{escape(text)}</div>'


def beside(*blocks: str) -> str:
    """Blocks next to each other, as far as there is room."""
    cells = "".join(f'<div style="margin-right:28px">{block}</div>' for block in blocks if block)
    return f'<div style="display:flex;flex-wrap:wrap;align-items:flex-start">{cells}</div>'


def captioned(caption: str, block: str) -> str:
    return f'<div style="opacity:.6;font-size:11px;margin-bottom:2px">{escape(caption)}</div>{block}' if block else ""


def cell(text: str, *, tag: str = "td", align: str = "left", style: str = "") -> str:
    """`text` is HTML."""
    return f'<{tag} style="text-align:{align};padding:1px 14px 1px 0;border:0;background:none;{style}">{text}</{tag}>'


def table(heads, rows, *, align: str = "left") -> str:
    """Heads are text, cells are HTML made by cell()."""
    head = "".join(cell(escape(text), tag="th", align=align, style="font-weight:normal;opacity:.6") for text in heads)
    body = "".join(f'<tr style="background:none">{"".join(row)}</tr>' for row in rows)
    return (f'<table style="border-collapse:collapse;border:0;font:12px/1.4 {_MONO};margin:0 0 6px 0">'
            f'<tr style="background:none">{head}</tr>{body}</table>')


def svg(width: float, height: float, *parts: str) -> str:
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" style="overflow:visible;max-width:none">{"".join(parts)}</svg>')


def rectangle(x: float, y: float, width: float, height: float, fill: str, more: str = "", title: str = "") -> str:
    said = f"<title>{escape(title)}</title>" if title else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" {more}>{said}</rect>'


def label(x: float, y: float, text: str, *, size: int = 11, anchor: str = "middle", fill: str = "currentColor", more: str = "") -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-family="sans-serif" text-anchor="{anchor}" '
            f'fill="{fill}" {more}>{escape(text)}</text>')


def fitting(text: str, width: float, size: int = 11) -> str:
    """The text, cut to what a width holds; "" when that is nothing worth reading."""
    room = int(width / (size * 0.58))
    return text if len(text) <= room else text[:room - 1] + "…" if room >= 4 else ""
