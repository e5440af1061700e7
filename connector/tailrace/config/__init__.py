"""The settings of a pipeline: one YAML file, validated completely before anything connects to a server.

`load.load_pipeline` reads the file and returns a `model.PipelineSettings`. `secrets.mask` removes secrets from every
text that leaves the process. Nothing is imported here: `mask` must stay cheap for commands without settings.
"""
