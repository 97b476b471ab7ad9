"""The model card of a bundle as a part of a page, from the same text that lies in the bundle as card.md."""

from __future__ import annotations

from markupsafe import Markup

from fedmap.bundles.card.picture import calibration_svg
from fedmap.bundles.card.text import model_card
from fedmap.bundles.manifest import CALIBRATION, Manifest
from fedmap.errors import NotFoundError
from fedmap.web.markdown import to_html


def card_html(manifest: Manifest, base: str) -> Markup:
    """The card's text as HTML; `base` is where this server has the bundle's picture."""
    return to_html(model_card(manifest), {CALIBRATION: f"{base}/{manifest.file_name}/{CALIBRATION}"})


def calibration_picture(manifest: Manifest) -> str:
    """The card's picture, drawn anew from the manifest's figures."""
    if not manifest.calibration:
        raise NotFoundError("The calibration of this model was not measured.", hint="Read its model card.")
    return calibration_svg(manifest.calibration, manifest.title)
