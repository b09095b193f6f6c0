"""Configs: every key with its default, config files, overrides, validation, and the final config of
a run.

A config file is Python with `get_config(arg="")` that returns `config.default(task=..., block=...)`
with some keys set. `load` reads back the `config.json` that each run writes.
"""

from gmlp_flax.config.config_files import (
    PACKAGED,
    apply_overrides,
    applying,
    arguments,
    from_dict,
    from_file,
    load,
    locate,
    named_overrides,
    note_path,
    open_config,
    overridden,
    set_value,
    to_json,
)
from gmlp_flax.config.resolution import (
    Resolved,
    Sizes,
    Start,
    mesh_name,
    no_start,
    resolve,
    with_mesh,
    with_model_of,
)
from gmlp_flax.config.schema import (
    changed,
    default,
    differences,
    flat,
    help_text,
    keys,
    mutable_copy,
    read_paths,
)
from gmlp_flax.config.validation import check_name, explain, validate
