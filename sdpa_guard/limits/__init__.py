"""What is known of torch's CUDA attention kernels. No module here holds a tensor.

    call        the facts of one attention call             (mask: what torch makes of its mask)
    *_counts      what the kernels of a backend compute from them    (kernel_blocks)
    backends      which backend takes it, on which torch release     (releases)
    limit         one bound of one kernel
    *_limits        those of each backend: the files to edit when a bound becomes known
    registry        all of them
    findings      how a call stands against the limits
    find_plan     the split and the copies that bring it inside      (plan, axis_cuts, bisection)
    check       all of that for a shape                     (layouts: its strides; text_table)

Imports go one way, and no module here imports ``guarding``, ``cli`` or ``probing``.
"""
