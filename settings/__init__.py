"""Every setting of the service, and the only reader of the environment.

Two trees, for two readers:

- `Settings`: how the service behaves towards its clients and where things are. Variables `LLM_…`.
- `Args`: how the processes are cut and the engines sized. `args:` in `bentofile.yaml`, which
  `bentoml.use_arguments` hands over (`service.py` calls it; nothing here imports bentoml).

What wins is written once, in docs/configuration.md, whose tables `python -m settings` prints.
"""

from settings.arguments import Args
from settings.errors import SettingsError
from settings.loading import environment, is_in_container, load_settings
from settings.variables import Settings

__all__ = ["Args", "Settings", "SettingsError", "environment", "is_in_container", "load_settings"]
