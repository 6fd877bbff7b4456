"""What is known of torch's CUDA attention kernels; it holds no tensor.

    call        the facts of one attention call
    counts        what the kernels compute from them
    backends      which backend takes it, on which torch release     (releases)
    limit         one bound of one kernel
    flash_limits, efficient_limits, cudnn_limits
                    those of each backend: the files to edit when a bound becomes known
    registry        all of them
    findings      how a call stands against the limits
    planning      the split that brings it inside                    (plan, bisection)
    check       all of that for a shape, as a table                  (text_table)

Imports go one way, and no module here imports the half that guards.
"""
