"""Makes the offline kit: one archive with which a hospital installs FedMAP on a machine without a network.

wheelhouse      our own two wheels and every dependency's, pinned and hashed
image_archive   the container image as the engine saved it, and what lies inside
bill            CycloneDX bills of materials of both
kit_archive     staged files → checksums → one archive, the same bytes for the same input
check_kit       travels in the kit: is it whole, does it fit this machine? Standard library only
build           the steps in order; `python -m deploy.offline_kit` runs them
"""
