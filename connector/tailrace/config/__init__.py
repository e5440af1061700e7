"""The settings of a pipeline: one YAML file, checked as a whole before anything is connected to.

`load.load_pipeline` is the way in, `model.Pipeline` is what comes out, `secrets.mask` is the last guard on
any text that leaves the process. Nothing is imported here: `mask` must stay cheap for commands that need no
settings.
"""
