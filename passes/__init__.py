"""Graph passes: from a captured graph to kernel regions with a planned step program.

`inferir.passes.manager.run_pipeline` runs them all; `inferir.passes.pipeline` lists them.
"""
