"""What pyproject.toml cannot say: two folders beside the package that a wheel carries inside it."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["bpc", "bpc.*"]), "bpc._templates", "bpc._specs"],
    package_dir={"bpc._templates": "templates", "bpc._specs": "specs"},
    package_data={
        "bpc": ["py.typed"],
        "bpc.data": ["assets/*"],
        "bpc._templates": ["**/*"],
        "bpc._specs": ["**/*.yaml"],
    },
)
