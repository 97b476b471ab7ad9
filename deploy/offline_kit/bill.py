"""Bills of materials in CycloneDX 1.6 (JSON): what the kit's wheels are, and what its image is made of.

Names, versions, package URLs, licences as each part states them, SHA-256 of every wheel, and who needs whom.
Serial number and time follow from the content and the source, so the same kit has the same bill.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from cyclonedx.contrib.license.exceptions import InvalidSpdxLicenseException
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from deploy.offline_kit.identity import Identity
from deploy.offline_kit.image import SavedImage
from deploy.offline_kit.wheels import Distribution, Wheel, parse_metadata
from fedmap.errors import IntegrityError

SCHEMA = SchemaVersion.V1_6
_FACTORY = LicenseFactory()


def bill_of_wheels(kit: Identity, wheels: tuple[Wheel, ...], graph: Mapping[str, tuple[str, ...]]) -> str:
    """Of the wheelhouse; the wheel of the kit's program is the subject."""
    parts = {wheel.distribution.name: _python_component(wheel.distribution, wheel.sha256) for wheel in wheels}
    own = parts[kit.role.program]
    own.type = ComponentType.APPLICATION
    needs = [(parts[name], [parts[other] for other in needed]) for name, needed in graph.items()]
    return _written(kit, own, (part for part in parts.values() if part is not own), needs)


def bill_of_image(kit: Identity, image: SavedImage) -> str:
    """Of the image: Debian's packages and the Python distributions in it."""
    whole = Component(
        type=ComponentType.CONTAINER,
        name=kit.role.program,
        version=kit.version,
        bom_ref=f"image:{kit.role.program}",
        properties=[Property(name="fedmap:image:id", value=image.identity)],
    )
    distribution, release = image.release()
    parts = [
        _component(
            PackageURL(
                *("deb", distribution, package.name, package.version),
                {"arch": package.architecture, "distro": f"{distribution}-{release}"},
            ),
            licenses=[_id_or_name(name) for name in package.licences],
        )
        for package in image.debian_packages()
    ]
    texts = sorted(path for path in image.files if path.endswith(".dist-info/METADATA"))
    python = [parse_metadata(image.files[path].encode(), path) for path in texts]
    # By version too: some distributions carry others inside.
    parts += map(_python_component, {(found.name, found.version): found for found in python}.values())
    return _written(kit, whole, parts, [(whole, parts)])


def faults_of(bill: str) -> list[str]:
    """What the schema has against a bill."""
    found = JsonStrictValidator(SCHEMA).validate_str(bill, all_errors=True)
    return [] if found is None else [str(error.data) for error in found]


def _written(
    kit: Identity,
    component: Component,
    parts: Iterable[Component],
    needs: Iterable[tuple[Component, Iterable[Component]]],
) -> str:
    """Valid JSON in one form. The serial number is made from everything else."""
    made = datetime.fromtimestamp(kit.epoch, UTC)
    bom = Bom(components=parts, metadata=BomMetaData(component=component, timestamp=made))
    for part, needed in needs:
        bom.register_dependency(part, needed)
    bom.serial_number = UUID(int=0)
    digest = hashlib.sha256(_json(bom).encode()).digest()
    bom.serial_number = UUID(bytes=digest[:16], version=4)
    text = _json(bom) + "\n"
    if faults := faults_of(text):
        raise IntegrityError(
            f"the bill of materials breaks its schema: {faults[0]}", hint="Report this: it is a defect."
        )
    return text


def _json(bom: Bom) -> str:
    return make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string(indent=2)


def _python_component(found: Distribution, sha256: str = "") -> Component:
    return _component(
        PackageURL("pypi", name=found.name, version=found.version),
        description=found.summary or None,
        # CycloneDX takes one expression or a list of licences, not a mixture.
        licenses=[_FACTORY.make_from_string(found.licences[0])]
        if len(found.licences) == 1
        else [_id_or_name(name) for name in found.licences],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else None,
    )


def _component(url: PackageURL, **more: Any) -> Component:
    return Component(name=url.name, version=url.version, purl=url, bom_ref=url.to_string(), **more)


def _id_or_name(stated: str) -> License:
    try:
        return _FACTORY.make_with_id(stated)
    except InvalidSpdxLicenseException:
        return _FACTORY.make_with_name(stated)
