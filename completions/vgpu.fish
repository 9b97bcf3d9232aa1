# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_vgpu_global_optspecs
    string join \n h/help V/version
end

function __fish_vgpu_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_vgpu_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_vgpu_using_subcommand
    set -l cmd (__fish_vgpu_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c vgpu -n "__fish_vgpu_needs_command" -s h -l help -d 'Print help'
complete -c vgpu -n "__fish_vgpu_needs_command" -s V -l version -d 'Print version'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "run" -d 'Starts a program under limits'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "check" -d 'Says whether libvgpu.so is mapped in a program, which is not run'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "doctor" -d 'Looks at this environment: library, driver, limits, tenant, daemon, and proves the limits'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "status" -d 'Shows the daemon\'s tenants, their limits and their members'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "sim" -d 'Looks after the simulated GPU'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "completions" -d 'Prints the completions of vgpu and vgpud for a shell'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c vgpu -n "__fish_vgpu_using_subcommand run" -l memory-limit -d 'Memory limit per device: 4GiB, 1500M, 25%, unlimited [sets VGPU_MEMORY_LIMIT]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand run" -l sm-limit -d 'Ceiling on the device\'s time in percent: 30, 12.5, unlimited [sets VGPU_SM_LIMIT]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand run" -l mode -d 'What becomes of the limits: enforce, observe (measured only) or off [sets VGPU_MODE]' -r -f -a "enforce\t''
observe\t''
off\t''"
complete -c vgpu -n "__fish_vgpu_using_subcommand run" -l tenant -d 'Whose limits these are; programs with the same name share them [default: $VGPU_TENANT, else a new name]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand run" -l socket -d 'The tenant\'s socket of vgpud, whose limits hold as well [sets VGPU_SOCKET]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand run" -l library -d 'libvgpu.so to use [default: $VGPU_LIBRARY, else the one beside this program]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand run" -l sim -d 'Give the program the simulated driver instead of the real one'
complete -c vgpu -n "__fish_vgpu_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand check" -l library -d 'The library that must be mapped [default: any libvgpu.so]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand check" -l pid -d 'Look at a running process instead' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand check" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand doctor" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand status" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand status" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand status" -s h -l help -d 'Print help'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and not __fish_seen_subcommand_from stat reset profiles env help" -s h -l help -d 'Print help'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and not __fish_seen_subcommand_from stat reset profiles env help" -f -a "stat" -d 'Shows the truth: bytes and device time of each process, as the device knows them'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and not __fish_seen_subcommand_from stat reset profiles env help" -f -a "reset" -d 'Removes the simulated machine; the next program that needs one makes a new one'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and not __fish_seen_subcommand_from stat reset profiles env help" -f -a "profiles" -d 'Shows the devices that can be simulated'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and not __fish_seen_subcommand_from stat reset profiles env help" -f -a "env" -d 'Prints the environment that gives any program the simulated driver, for a shell to evaluate'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and not __fish_seen_subcommand_from stat reset profiles env help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from stat" -l dir -d 'Directory of the machine\'s state [default: $VGPU_SIM_DIR, else /dev/shm/vgpu-sim-<uid>]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from stat" -l timeline -d 'Also show for whom the device worked in the last SECONDS, at most 81; as JSON in buckets of 10 ms' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from stat" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from stat" -s h -l help -d 'Print help'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from reset" -l dir -d 'Directory of the machine\'s state [default: $VGPU_SIM_DIR, else /dev/shm/vgpu-sim-<uid>]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from reset" -s h -l help -d 'Print help'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from profiles" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from profiles" -s h -l help -d 'Print help'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from env" -l dir -d 'Directory of the machine\'s state [default: $VGPU_SIM_DIR, else /dev/shm/vgpu-sim-<uid>]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from env" -l profile -d 'The devices of a new machine: h200, 2xh200, t4,l4' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from env" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from env" -s h -l help -d 'Print help'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "stat" -d 'Shows the truth: bytes and device time of each process, as the device knows them'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "reset" -d 'Removes the simulated machine; the next program that needs one makes a new one'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "profiles" -d 'Shows the devices that can be simulated'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "env" -d 'Prints the environment that gives any program the simulated driver, for a shell to evaluate'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c vgpu -n "__fish_vgpu_using_subcommand completions" -l of -d 'Of which program' -r -f -a "vgpu\t''
vgpud\t''"
complete -c vgpu -n "__fish_vgpu_using_subcommand completions" -s h -l help -d 'Print help'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status sim completions help" -f -a "run" -d 'Starts a program under limits'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status sim completions help" -f -a "check" -d 'Says whether libvgpu.so is mapped in a program, which is not run'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status sim completions help" -f -a "doctor" -d 'Looks at this environment: library, driver, limits, tenant, daemon, and proves the limits'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status sim completions help" -f -a "status" -d 'Shows the daemon\'s tenants, their limits and their members'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status sim completions help" -f -a "sim" -d 'Looks after the simulated GPU'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status sim completions help" -f -a "completions" -d 'Prints the completions of vgpu and vgpud for a shell'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status sim completions help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and __fish_seen_subcommand_from sim" -f -a "stat" -d 'Shows the truth: bytes and device time of each process, as the device knows them'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and __fish_seen_subcommand_from sim" -f -a "reset" -d 'Removes the simulated machine; the next program that needs one makes a new one'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and __fish_seen_subcommand_from sim" -f -a "profiles" -d 'Shows the devices that can be simulated'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and __fish_seen_subcommand_from sim" -f -a "env" -d 'Prints the environment that gives any program the simulated driver, for a shell to evaluate'
