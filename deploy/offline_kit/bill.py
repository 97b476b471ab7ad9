"""Bills of materials in CycloneDX 1.6 (JSON): what the kit's wheels are, and what its image is made of.

Names, versions, package URLs, licences as each part states them, SHA-256 of every wheel, and who needs whom.
Serial number and time follow from the content and the source, so the same kit has the same bill.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from cyclonedx.contrib.license.exceptions import InvalidSpdxLicenseException
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License, LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from deploy.offline_kit.debian_packages import DebianPackage, Release, debian_packages, release_of
from deploy.offline_kit.image_archive import SavedImage
from deploy.offline_kit.wheel_metadata import Distribution, parse_metadata
from deploy.offline_kit.wheelhouse import Wheel
from fedmap.errors import IntegrityError

SCHEMA = SchemaVersion.V1_6
_FACTORY = LicenseFactory()


@dataclass(frozen=True)
class Subject:
    """What a bill is about."""

    name: str
    version: str
    epoch: int  # seconds since 1970: the time of the source, not of the build


def bill_of_wheels(subject: Subject, wheels: tuple[Wheel, ...], graph: Mapping[str, tuple[str, ...]]) -> str:
    """Of the wheelhouse; the wheel of the role's program is the subject."""
    components = {
        wheel.distribution.name: _python_component(wheel.distribution, wheel.sha256) for wheel in wheels
    }
    own = components[subject.name]
    own.type = ComponentType.APPLICATION
    bom = _bom(subject, own, (c for name, c in components.items() if name != subject.name))
    for name, needed in graph.items():
        bom.register_dependency(components[name], [components[other] for other in needed])
    return _written(bom)


def bill_of_image(subject: Subject, image: SavedImage) -> str:
    """Of the image: Debian's packages and the Python distributions in it."""
    release = release_of(image.files)
    debian = [_debian_component(package, release) for package in debian_packages(image.files)]
    python = {  # by version too: some distributions carry others inside
        (found.name, found.version): _python_component(found)
        for path, text in sorted(image.files.items())
        if path.endswith(".dist-info/METADATA")
        for found in (parse_metadata(text, path),)
    }
    whole = Component(
        type=ComponentType.CONTAINER,
        name=subject.name,
        version=subject.version,
        bom_ref=f"image:{subject.name}",
        properties=[Property(name="fedmap:image:id", value=image.identity)],
    )
    parts = [*debian, *python.values()]
    bom = _bom(subject, whole, parts)
    bom.register_dependency(whole, parts)
    return _written(bom)


def faults_of(bill: str) -> list[str]:
    """What the schema has against a bill."""
    found = JsonStrictValidator(SCHEMA).validate_str(bill, all_errors=True)
    return [] if found is None else [str(error.data) for error in found]


def _bom(subject: Subject, component: Component, parts: Iterable[Component]) -> Bom:
    made = datetime.fromtimestamp(subject.epoch, UTC)
    return Bom(components=parts, metadata=BomMetaData(component=component, timestamp=made))


def _written(bom: Bom) -> str:
    """Valid JSON in one form. The serial number is made from everything else."""
    bom.serial_number = UUID(int=0)
    digest = hashlib.sha256(_json(bom).encode()).digest()
    bom.serial_number = UUID(bytes=digest[:16], version=4)
    text = _json(bom) + "\n"
    faults = faults_of(text)
    if faults:
        raise IntegrityError(
            f"the bill of materials breaks its schema: {faults[0]}", hint="Report this: it is a defect."
        )
    return text


def _json(bom: Bom) -> str:
    return make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string(indent=2)


def _python_component(found: Distribution, sha256: str | None = None) -> Component:
    url = PackageURL("pypi", name=found.name, version=found.version)
    return Component(
        name=found.name,
        version=found.version,
        description=found.summary or None,
        purl=url,
        bom_ref=url.to_string(),
        licenses=_spdx_licences(found.licences),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else None,
    )


def _debian_component(package: DebianPackage, release: Release) -> Component:
    qualifiers = {"arch": package.architecture, "distro": f"{release.distribution}-{release.version}"}
    url = PackageURL("deb", release.distribution, package.name, package.version, qualifiers)
    return Component(
        name=package.name,
        version=package.version,
        purl=url,
        bom_ref=url.to_string(),
        licenses=[_id_or_name(name) for name in package.licences],
    )


def _spdx_licences(stated: tuple[str, ...]) -> list[License]:
    """CycloneDX takes one expression or a list of licences, not a mixture."""
    if len(stated) == 1:
        return [_FACTORY.make_from_string(stated[0])]
    made: list[License] = [_id_or_name(name) for name in stated]
    assert not any(isinstance(licence, LicenseExpression) for licence in made)
    return made


def _id_or_name(stated: str) -> License:
    try:
        return _FACTORY.make_with_id(stated)
    except InvalidSpdxLicenseException:
        return _FACTORY.make_with_name(stated)
