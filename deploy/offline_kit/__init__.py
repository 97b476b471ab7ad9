"""Makes the offline kit: one archive with which a hospital installs FedMAP on a machine without a network.

roles       whose kits there are, and what each holds
wheels      our own two wheels and every dependency's, pinned and hashed
image       the container image as the engine saved it, and what lies inside
identity    which kit it is: role, version, revision, time
bill        CycloneDX bills of materials of wheels and image
staging     all of it → one folder → checksums → one archive
check_kit   travels in the kit: is it whole, does it fit this machine? Standard library only

`python -m deploy.offline_kit` runs them in order.
"""
