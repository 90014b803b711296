"""Reading settings from YAML files, finding files that are shipped, and writing files whole."""

from turbospec.files.results_file import save
from turbospec.files.settings import Settings
from turbospec.files.shipped import find_file, is_name, shipped_files
from turbospec.files.suggestions import nearest
from turbospec.files.whole_file import write_whole
from turbospec.files.yaml_source import YamlSource
from turbospec.files.yaml_text import yaml_text

__all__ = [
    "Settings",
    "YamlSource",
    "find_file",
    "is_name",
    "nearest",
    "save",
    "shipped_files",
    "write_whole",
    "yaml_text",
]
