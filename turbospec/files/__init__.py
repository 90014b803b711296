"""Files: reading settings and data from outside, finding files that are shipped, and writing files whole."""

from turbospec.files.reading import open_file, parse_json, read_bytes, read_json, read_lines, read_text
from turbospec.files.results_file import save
from turbospec.files.settings import Settings
from turbospec.files.shipped import find_file, is_name, shipped_files
from turbospec.files.suggestions import nearest
from turbospec.files.writing import check_folder, check_outputs, write_whole
from turbospec.files.yaml_source import YamlSource
from turbospec.files.yaml_text import yaml_text

__all__ = [
    "Settings",
    "YamlSource",
    "check_folder",
    "check_outputs",
    "find_file",
    "is_name",
    "nearest",
    "open_file",
    "parse_json",
    "read_bytes",
    "read_json",
    "read_lines",
    "read_text",
    "save",
    "shipped_files",
    "write_whole",
    "yaml_text",
]
