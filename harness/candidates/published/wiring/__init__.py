"""Modules that the wirings of published libraries share.

    limits, averages             which cases a wiring refuses, as arithmetic on the case
    rows                         micro-batches: a padded table, a packed stream, labels, targets
    decoder, gradients           training steps; the decoder is for libraries without a model
    emitting                     emit a model's inputs, and each token's label, loss and weight
    trainer                      a transformers `Trainer` that emits what it computes
    packages, stand_ins          import part of a library; replace what a CPU rank lacks
    meshes, ring_on_cpu, gathering    meshes and collectives on a CPU over gloo
    restored, mending, whole     undo process-wide changes; run a library without a listed bug

1. A wiring calls released code. It replaces only what a CPU rank lacks, and emits what that
   code computes.
2. Limits import neither torch nor a library, so that any process can ask them about a case.
3. Token numbers travel through the library's own padding and cuts, so that every emitted value has
   the number of its token. Padding has the number `rows.PADDING`.
4. No module here uses the native candidates. So a mistake in a wiring shows at sp 1, where the
   library shares nothing yet and cannot be at fault.
"""
