"""The program that drives one release of vLLM without a model and without a GPU.

It runs in vLLM's own interpreter, where kvoracle is not installed: nothing here
imports kvoracle.  ``docs/protocol.md`` is the whole contract with the parent.

Read in this order: ``serve`` (the loop), ``run`` (what a stimulus does), ``build``
(a config becomes vLLM objects), ``plugin`` (the extension points through which the
engine is watched), ``content`` and ``ghost`` (bytes as tags), ``observe`` (what the
planner is seen to know), ``postmortem`` (what a failing step had decided).
"""
