"""Settings for all tests."""

from hypothesis import settings

# Shared cores make single examples slow now and then; how long a test takes is not what it checks.
settings.register_profile("evenstep", deadline=None)
settings.load_profile("evenstep")
