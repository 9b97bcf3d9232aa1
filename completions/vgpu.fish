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
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "doctor" -d 'Looks at this environment: library, driver, limits, tenant, daemon and what it found, and proves the limits'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "status" -d 'Shows the daemon\'s tenants, their limits, their members, and what they get of each device'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "top" -d 'Shows tenants and devices in a view that goes on, with keys to order, filter, pause and set'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "ps" -d 'Shows every process that is connected to the daemon, its container, and what it got of each device'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "set" -d 'Changes a tenant\'s terms while its programs run, until the configuration is read again'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "pause" -d 'Lets a tenant launch nothing until it is resumed; what it holds stays, what is in flight ends'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "resume" -d 'Lets a paused tenant launch again'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "explain" -d 'Says why a tenant waits or does not: who is before it, which rule limits it, when that ends'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "usage" -d 'Shows what tenants used: device time, memory, time at the gate, refused allocations'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "report" -d 'Makes reports from the daemon\'s record: who used what, who owes what, what is idle, which limits fit'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "validate" -d 'Runs programs alone and together, each as its tenant, and reports what sharing costs: latency, throughput, P99, fairness'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "events" -d 'Shows what happened: members that came and went, changes and who made them, refusals, findings'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "audit" -d 'Shows an audit log, or checks that nothing in it was changed or taken out'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "metrics" -d 'Prints the daemon\'s metrics in the OpenMetrics text format'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "docker" -d 'Starts containers under limits'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "cdi" -d 'Describes tenants to container engines, by the Container Device Interface'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "sim" -d 'Looks after the simulated GPU'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "clean" -d 'Removes what ended programs left in memory: ledgers that no process holds'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "completions" -d 'Prints the completions of vgpu and vgpud for a shell'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "man" -d 'Writes the manual pages of vgpu and vgpud'
complete -c vgpu -n "__fish_vgpu_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c vgpu -n "__fish_vgpu_using_subcommand run" -l memory-limit -d 'Memory limit per device: 4GiB, 1500M, 25%, unlimited [sets VGPU_MEMORY_LIMIT]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand run" -l sm-limit -d 'Ceiling on the device\'s time in percent: 30, 12.5, unlimited [sets VGPU_SM_LIMIT]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand run" -l mode -d 'What becomes of the limits: enforce, observe (measured only) or off; beside a daemon it has no effect [sets VGPU_MODE]' -r -f -a "enforce\t''
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
complete -c vgpu -n "__fish_vgpu_using_subcommand status" -l watch -d 'Show it again every SECONDS, until interrupted, over a restart of the daemon too; with --json a line each time' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand status" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand top" -s i -l interval -d 'Time between two looks' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand top" -s b -l batch -d 'Print so many looks as text, without a terminal, and end' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand top" -s s -l sort -d 'Order by this column: numbers from the highest, names from a' -r -f -a "tenant\t'By name'
device\t'By device'
class\t'By class'
weight\t'By weight'
floor\t'By guaranteed share'
ceiling\t'By ceiling'
wanted\t'By how much of the device was wanted'
got\t'By how much of it was got'
memory\t'By memory in use'
wait\t'By time at the gate'
members\t'By number of processes'
state\t'By state'"
complete -c vgpu -n "__fish_vgpu_using_subcommand top" -s f -l filter -d 'Only tenants with this in their name, in small or capital letters' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand top" -s d -l device -d 'Only this device: its number or UUID, as the daemon names it' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand top" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand top" -l once -d 'Print one look as text and end'
complete -c vgpu -n "__fish_vgpu_using_subcommand top" -s r -l reverse -d 'Order the other way round'
complete -c vgpu -n "__fish_vgpu_using_subcommand top" -l read-only -d 'Change nothing, whatever is typed'
complete -c vgpu -n "__fish_vgpu_using_subcommand top" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand ps" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand ps" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand ps" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand set" -l device -d 'On this device only: its number or UUID, as the configuration names it [default: all of the tenant\'s]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand set" -l memory-limit -d 'Most memory on each device: 4GiB, 1500M, 25%, unlimited' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand set" -l sm-limit -d 'Ceiling on the device\'s time in percent: 30, 12.5, unlimited' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand set" -l sm-request -d 'Floor: time it gets when it wants it, in percent: 30, 12.5, none' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand set" -l weight -d 'Its part of the time that floors leave: 1 to 10000' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand set" -l class -d 'Who comes first: latency, normal, batch' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand set" -l quantum -d 'Length of its leases: 500us to 50ms, or default for that of its class' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand set" -l mode -d 'Whether its limits are kept: enforce, or observe (measured only, nothing is refused or delayed)' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand set" -l strict -d 'Whether ways around the library are refused: true or false, for processes that start from now on' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand set" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand set" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand set" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand pause" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand pause" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand pause" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand resume" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand resume" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand resume" -s h -l help -d 'Print help'
complete -c vgpu -n "__fish_vgpu_using_subcommand explain" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand explain" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand explain" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand usage" -l since -d 'From when on: so long ago (90m, 24h, 7d), or a date or time of UTC (2026-11-01, 2026-11-01T12:00) [default: all]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand usage" -l until -d 'Until when, likewise [default: now]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand usage" -l by -d 'How rows are put together' -r -f -a "total\t'All of the time that was asked about'
hour\t'Hour by hour'
day\t'Day by day, by UTC'
minute\t'Minute by minute, as long as that is kept; older rows are whole hours'"
complete -c vgpu -n "__fish_vgpu_using_subcommand usage" -l format -d 'What is printed' -r -f -a "table\t'For people'
json\t'`{"rows": [...], "total": {...}}`; also by --json'
csv\t'A head, a line for each row, and no total'"
complete -c vgpu -n "__fish_vgpu_using_subcommand usage" -l state-dir -d 'Where the record lies [default: where the daemon says; without one /var/lib/vgpu for root, else $XDG_STATE_HOME/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand usage" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand usage" -l device -d 'Device by device'
complete -c vgpu -n "__fish_vgpu_using_subcommand usage" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand usage" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and not __fish_seen_subcommand_from usage chargeback idle rightsizing efficiency trend savings help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and not __fish_seen_subcommand_from usage chargeback idle rightsizing efficiency trend savings help" -f -a "usage" -d 'Shows who used how much: device time and memory, and each one\'s part; all parts together are 100.0 %'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and not __fish_seen_subcommand_from usage chargeback idle rightsizing efficiency trend savings help" -f -a "chargeback" -d 'Makes a bill: device time and memory at rates, by tenant, group or label; its lines add up to its total exactly'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and not __fish_seen_subcommand_from usage chargeback idle rightsizing efficiency trend savings help" -f -a "idle" -d 'Shows what was held and not used: memory that tenants kept while they computed nothing, and idle time of devices'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and not __fish_seen_subcommand_from usage chargeback idle rightsizing efficiency trend savings help" -f -a "rightsizing" -d 'Suggests limits that fit: what each tenant had at most beside what it may have, what would be enough, and why'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and not __fish_seen_subcommand_from usage chargeback idle rightsizing efficiency trend savings help" -f -a "efficiency" -d 'Shows how much of what was kept for a tenant it used: of its ceiling on device time, and of its memory limit'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and not __fish_seen_subcommand_from usage chargeback idle rightsizing efficiency trend savings help" -f -a "trend" -d 'Shows how use goes on: what each day had, whether it becomes more or less, and where that leads if it goes on so'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and not __fish_seen_subcommand_from usage chargeback idle rightsizing efficiency trend savings help" -f -a "savings" -d 'Computes what sharing saves: GPUs of one\'s own against fewer that are shared. Needs no record'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and not __fish_seen_subcommand_from usage chargeback idle rightsizing efficiency trend savings help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from usage" -l since -d 'From when on: so long ago (90m, 24h, 7d), or a date or time of UTC (2026-11-01, 2026-11-01T12:00) [default: all]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from usage" -l until -d 'Until when, likewise [default: now]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from usage" -l month -d 'A month of UTC: 2026-11, this, last' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from usage" -l state-dir -d 'Where the record lies [default: where the daemon says; without one /var/lib/vgpu for root, else $XDG_STATE_HOME/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from usage" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from usage" -l format -d 'How it is written' -r -f -a "table\t'For people'
json\t'For programs; also by --json'
csv\t'For spreadsheets: a head, a line for each row, no total'
markdown\t'For documents'
html\t'One file with pictures, and nothing from elsewhere'"
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from usage" -s o -l out -d 'The file that it is written to, as a whole or not at all [default: standard output]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from usage" -l by -d 'What lines are for: tenant, group, device, label:NAME, or several with commas between' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from usage" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from usage" -l only-used -d 'Without the time of devices that nobody used'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from usage" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from chargeback" -l since -d 'From when on: so long ago (90m, 24h, 7d), or a date or time of UTC (2026-11-01, 2026-11-01T12:00) [default: all]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from chargeback" -l until -d 'Until when, likewise [default: now]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from chargeback" -l month -d 'A month of UTC: 2026-11, this, last' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from chargeback" -l state-dir -d 'Where the record lies [default: where the daemon says; without one /var/lib/vgpu for root, else $XDG_STATE_HOME/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from chargeback" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from chargeback" -l format -d 'How it is written' -r -f -a "table\t'For people'
json\t'For programs; also by --json'
csv\t'For spreadsheets: a head, a line for each row, no total'
markdown\t'For documents'
html\t'One file with pictures, and nothing from elsewhere'"
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from chargeback" -s o -l out -d 'The file that it is written to, as a whole or not at all [default: standard output]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from chargeback" -l gpu-rate -d 'Price of a GPU\'s time: 2.24/h, 0.0006/s' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from chargeback" -l memory-rate -d 'Price of a GiB that is held: 0.02/h' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from chargeback" -l currency -d 'Written behind amounts: EUR' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from chargeback" -l decimals -d 'Digits behind the point of amounts' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from chargeback" -l by -d 'What lines are for: tenant, group, device, label:NAME, or several with commas between' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from chargeback" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from chargeback" -l only-used -d 'Without the time of devices that nobody used'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from chargeback" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from idle" -l since -d 'From when on: so long ago (90m, 24h, 7d), or a date or time of UTC (2026-11-01, 2026-11-01T12:00) [default: all]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from idle" -l until -d 'Until when, likewise [default: now]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from idle" -l month -d 'A month of UTC: 2026-11, this, last' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from idle" -l state-dir -d 'Where the record lies [default: where the daemon says; without one /var/lib/vgpu for root, else $XDG_STATE_HOME/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from idle" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from idle" -l format -d 'How it is written' -r -f -a "table\t'For people'
json\t'For programs; also by --json'
csv\t'For spreadsheets: a head, a line for each row, no total'
markdown\t'For documents'
html\t'One file with pictures, and nothing from elsewhere'"
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from idle" -s o -l out -d 'The file that it is written to, as a whole or not at all [default: standard output]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from idle" -l below -d 'Below so many percent of the device\'s time a minute is idle' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from idle" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from idle" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from rightsizing" -l since -d 'From when on: so long ago (90m, 24h, 7d), or a date or time of UTC (2026-11-01, 2026-11-01T12:00) [default: all]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from rightsizing" -l until -d 'Until when, likewise [default: now]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from rightsizing" -l month -d 'A month of UTC: 2026-11, this, last' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from rightsizing" -l state-dir -d 'Where the record lies [default: where the daemon says; without one /var/lib/vgpu for root, else $XDG_STATE_HOME/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from rightsizing" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from rightsizing" -l format -d 'How it is written' -r -f -a "table\t'For people'
json\t'For programs; also by --json'
csv\t'For spreadsheets: a head, a line for each row, no total'
markdown\t'For documents'
html\t'One file with pictures, and nothing from elsewhere'"
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from rightsizing" -s o -l out -d 'The file that it is written to, as a whole or not at all [default: standard output]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from rightsizing" -l headroom -d 'Room above what was used, in percent' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from rightsizing" -l least -d 'Nothing is suggested for who was seen for less than this: 30m, 1h, 7d' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from rightsizing" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from rightsizing" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from efficiency" -l since -d 'From when on: so long ago (90m, 24h, 7d), or a date or time of UTC (2026-11-01, 2026-11-01T12:00) [default: all]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from efficiency" -l until -d 'Until when, likewise [default: now]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from efficiency" -l month -d 'A month of UTC: 2026-11, this, last' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from efficiency" -l state-dir -d 'Where the record lies [default: where the daemon says; without one /var/lib/vgpu for root, else $XDG_STATE_HOME/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from efficiency" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from efficiency" -l format -d 'How it is written' -r -f -a "table\t'For people'
json\t'For programs; also by --json'
csv\t'For spreadsheets: a head, a line for each row, no total'
markdown\t'For documents'
html\t'One file with pictures, and nothing from elsewhere'"
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from efficiency" -s o -l out -d 'The file that it is written to, as a whole or not at all [default: standard output]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from efficiency" -l by -d 'What lines are for: tenant, group, device, label:NAME, or several with commas between' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from efficiency" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from efficiency" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from trend" -l since -d 'From when on: so long ago (90m, 24h, 7d), or a date or time of UTC (2026-11-01, 2026-11-01T12:00) [default: all]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from trend" -l until -d 'Until when, likewise [default: now]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from trend" -l month -d 'A month of UTC: 2026-11, this, last' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from trend" -l state-dir -d 'Where the record lies [default: where the daemon says; without one /var/lib/vgpu for root, else $XDG_STATE_HOME/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from trend" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from trend" -l format -d 'How it is written' -r -f -a "table\t'For people'
json\t'For programs; also by --json'
csv\t'For spreadsheets: a head, a line for each row, no total'
markdown\t'For documents'
html\t'One file with pictures, and nothing from elsewhere'"
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from trend" -s o -l out -d 'The file that it is written to, as a whole or not at all [default: standard output]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from trend" -l by -d 'What lines are for: tenant, group, device, label:NAME, or several with commas between' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from trend" -l each -d 'What is one step' -r -f -a "hour\t'From the full hour on'
day\t'Of UTC'
week\t'From Monday on, of UTC'"
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from trend" -l ahead -d 'How many steps after the last one the line is read' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from trend" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from trend" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from savings" -l dedicated -d 'GPUs of one\'s own, without sharing' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from savings" -l shared -d 'GPUs that are shared instead' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from savings" -l tenants -d 'Who share them' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from savings" -l gpu-price -d 'A GPU\'s price for an hour' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from savings" -l tenant-price -d 'What each who shares adds to that, for an hour' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from savings" -l hours -d 'For so many hours; 730 are a month' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from savings" -l added-ms -d 'Milliseconds by which sharing makes answers later' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from savings" -l loss -d 'Percent of the revenue that is lost for each 100 ms' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from savings" -l revenue -d 'What is earned in an hour' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from savings" -l currency -d 'Written behind amounts: EUR' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from savings" -l format -d 'How it is written' -r -f -a "table\t'For people'
json\t'For programs; also by --json'
csv\t'For spreadsheets: a head, a line for each row, no total'
markdown\t'For documents'
html\t'One file with pictures, and nothing from elsewhere'"
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from savings" -s o -l out -d 'The file that it is written to, as a whole or not at all [default: standard output]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from savings" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from savings" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from help" -f -a "usage" -d 'Shows who used how much: device time and memory, and each one\'s part; all parts together are 100.0 %'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from help" -f -a "chargeback" -d 'Makes a bill: device time and memory at rates, by tenant, group or label; its lines add up to its total exactly'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from help" -f -a "idle" -d 'Shows what was held and not used: memory that tenants kept while they computed nothing, and idle time of devices'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from help" -f -a "rightsizing" -d 'Suggests limits that fit: what each tenant had at most beside what it may have, what would be enough, and why'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from help" -f -a "efficiency" -d 'Shows how much of what was kept for a tenant it used: of its ceiling on device time, and of its memory limit'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from help" -f -a "trend" -d 'Shows how use goes on: what each day had, whether it becomes more or less, and where that leads if it goes on so'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from help" -f -a "savings" -d 'Computes what sharing saves: GPUs of one\'s own against fewer that are shared. Needs no record'
complete -c vgpu -n "__fish_vgpu_using_subcommand report; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c vgpu -n "__fish_vgpu_using_subcommand validate" -l runs -d 'How many rounds; fewer than 10 say little' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand validate" -l warmup -d 'How many rounds before that are not counted' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand validate" -l measure -d 'What an iteration is: the run, or what the program says in lines of JSON with "seconds" or "milliseconds"' -r -f -a "run\t''
json\t''"
complete -c vgpu -n "__fish_vgpu_using_subcommand validate" -l pattern -d 'The iterations are lines in which this stands: text with {s}, {ms}, {us} or, for a number a second, {/s}' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand validate" -l timeout -d 'How long a run may take' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand validate" -l out -d 'A directory for report.html, report.md and report.json' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand validate" -l tenant -d 'Without a daemon: NAME, or NAME:memory=SIZE,sm=PERCENT; repeatable' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand validate" -l library -d 'libvgpu.so to use [default: $VGPU_LIBRARY, else the one beside this program]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand validate" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand validate" -l bare -d 'Without the library: nobody is held to anything'
complete -c vgpu -n "__fish_vgpu_using_subcommand validate" -l sim -d 'Give the programs the simulated driver instead of the real one'
complete -c vgpu -n "__fish_vgpu_using_subcommand validate" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand validate" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand events" -l since -d 'From this number on' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand events" -l tenant -d 'Of this tenant only' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand events" -l kind -d 'Of this kind, or of this subject, only: member.joined, tenant, proof; repeatable' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand events" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand events" -s f -l follow -d 'Then wait for more, until interrupted, over a restart of the daemon too'
complete -c vgpu -n "__fish_vgpu_using_subcommand events" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand events" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand audit" -l head -d 'The hash of a line that must be there: of the last one at the time it was kept' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand audit" -l socket -d 'The administrative socket of the daemon that writes the file [default: as in vgpu status; nobody needs to answer there]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand audit" -l verify -d 'Check the chain of all its lines, those of rotated files too'
complete -c vgpu -n "__fish_vgpu_using_subcommand audit" -l json -d 'Print JSON: the lines as they are'
complete -c vgpu -n "__fish_vgpu_using_subcommand audit" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand metrics" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand metrics" -l no-hami-names -d 'Leave out what is there for dashboards made for HAMi'
complete -c vgpu -n "__fish_vgpu_using_subcommand metrics" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand metrics" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and not __fish_seen_subcommand_from run help" -s h -l help -d 'Print help'
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and not __fish_seen_subcommand_from run help" -f -a "run" -d 'Adds libvgpu.so and limits to a `docker run`, and becomes it'
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and not __fish_seen_subcommand_from run help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and __fish_seen_subcommand_from run" -l memory-limit -d 'Memory limit per device: 4GiB, 1500M, 25%, unlimited [sets VGPU_MEMORY_LIMIT]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and __fish_seen_subcommand_from run" -l sm-limit -d 'Ceiling on the device\'s time in percent: 30, 12.5, unlimited [sets VGPU_SM_LIMIT]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and __fish_seen_subcommand_from run" -l mode -d 'What becomes of the limits: enforce, observe (measured only) or off; beside a daemon it has no effect [sets VGPU_MODE]' -r -f -a "enforce\t''
observe\t''
off\t''"
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and __fish_seen_subcommand_from run" -l tenant -d 'The tenant of vgpud whose limits hold; its directory below the daemon\'s runtime directory is mounted' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and __fish_seen_subcommand_from run" -l socket -d 'The tenant\'s socket, where it lies elsewhere; its directory is mounted' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and __fish_seen_subcommand_from run" -l library -d 'libvgpu.so to use; its directory is mounted [default: $VGPU_LIBRARY, else the one beside this program]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and __fish_seen_subcommand_from run" -l preload -d 'How the library gets into programs: env (LD_PRELOAD) or file (/etc/ld.so.preload, also for programs that are started without an environment or with more rights than their caller)' -r -f -a "env\t''
file\t''"
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and __fish_seen_subcommand_from run" -l sim-dir -d 'With --sim: directory of the machine\'s state, common to all that share it [default: $VGPU_SIM_DIR, else /dev/shm/vgpu-sim-<uid>]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and __fish_seen_subcommand_from run" -l engine -d 'The engine\'s command [default: $VGPU_DOCKER, else docker]' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and __fish_seen_subcommand_from run" -l sim -d 'Give the container the simulated GPU instead of a real one'
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and __fish_seen_subcommand_from run" -l unchecked -d 'Do not look into the image: nothing of its own is merged, and nobody says that it could not load the library'
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and __fish_seen_subcommand_from run" -l print -d 'Show the command instead of running it'
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and __fish_seen_subcommand_from run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and __fish_seen_subcommand_from help" -f -a "run" -d 'Adds libvgpu.so and limits to a `docker run`, and becomes it'
complete -c vgpu -n "__fish_vgpu_using_subcommand docker; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c vgpu -n "__fish_vgpu_using_subcommand cdi; and not __fish_seen_subcommand_from generate help" -s h -l help -d 'Print help'
complete -c vgpu -n "__fish_vgpu_using_subcommand cdi; and not __fish_seen_subcommand_from generate help" -f -a "generate" -d 'Writes a CDI specification with a device for each tenant of vgpud'
complete -c vgpu -n "__fish_vgpu_using_subcommand cdi; and not __fish_seen_subcommand_from generate help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c vgpu -n "__fish_vgpu_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l socket -d 'The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l config -d 'Take the tenants from this file of vgpud instead of asking the daemon' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l kind -d 'Vendor and class of the devices' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l library -d 'libvgpu.so to use; its directory is mounted [default: $VGPU_LIBRARY, else the one beside this program]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l output -d 'The file to write, whole or not at all; engines read *.json in /etc/cdi and /var/run/cdi [default: standard output]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand cdi; and __fish_seen_subcommand_from generate" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand cdi; and __fish_seen_subcommand_from help" -f -a "generate" -d 'Writes a CDI specification with a device for each tenant of vgpud'
complete -c vgpu -n "__fish_vgpu_using_subcommand cdi; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and not __fish_seen_subcommand_from stat reset profiles env help" -s h -l help -d 'Print help'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and not __fish_seen_subcommand_from stat reset profiles env help" -f -a "stat" -d 'Shows the truth: bytes and device time of each process, as the device knows them'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and not __fish_seen_subcommand_from stat reset profiles env help" -f -a "reset" -d 'Removes the simulated machine, and its directory if nothing else is in it'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and not __fish_seen_subcommand_from stat reset profiles env help" -f -a "profiles" -d 'Shows the devices that can be simulated'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and not __fish_seen_subcommand_from stat reset profiles env help" -f -a "env" -d 'Prints the environment that gives any program the simulated driver, for a shell to evaluate'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and not __fish_seen_subcommand_from stat reset profiles env help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from stat" -l dir -d 'Directory of the machine\'s state [default: $VGPU_SIM_DIR, else /dev/shm/vgpu-sim-<uid>]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from stat" -l timeline -d 'Also show for whom the device worked in the last SECONDS, at most 81; as JSON in buckets of 10 ms' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from stat" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from stat" -s h -l help -d 'Print help'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from reset" -l dir -d 'Directory of the machine\'s state [default: $VGPU_SIM_DIR, else /dev/shm/vgpu-sim-<uid>]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from reset" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from profiles" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from profiles" -s h -l help -d 'Print help'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from env" -l dir -d 'Directory of the machine\'s state [default: $VGPU_SIM_DIR, else /dev/shm/vgpu-sim-<uid>]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from env" -l profile -d 'The devices of a new machine: h200, 2xh200, t4,l4' -r
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from env" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from env" -s h -l help -d 'Print help'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "stat" -d 'Shows the truth: bytes and device time of each process, as the device knows them'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "reset" -d 'Removes the simulated machine, and its directory if nothing else is in it'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "profiles" -d 'Shows the devices that can be simulated'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "env" -d 'Prints the environment that gives any program the simulated driver, for a shell to evaluate'
complete -c vgpu -n "__fish_vgpu_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c vgpu -n "__fish_vgpu_using_subcommand clean" -l dir -d 'Where ledgers are looked for, several times if need be [default: $VGPU_STATE_DIR, else /dev/shm and /tmp]' -r -F
complete -c vgpu -n "__fish_vgpu_using_subcommand clean" -s n -l dry-run -d 'Show what would be removed, and remove nothing'
complete -c vgpu -n "__fish_vgpu_using_subcommand clean" -l json -d 'Print JSON'
complete -c vgpu -n "__fish_vgpu_using_subcommand clean" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand completions" -l of -d 'Of which program' -r -f -a "vgpu\t''
vgpud\t''"
complete -c vgpu -n "__fish_vgpu_using_subcommand completions" -s h -l help -d 'Print help'
complete -c vgpu -n "__fish_vgpu_using_subcommand man" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "run" -d 'Starts a program under limits'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "check" -d 'Says whether libvgpu.so is mapped in a program, which is not run'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "doctor" -d 'Looks at this environment: library, driver, limits, tenant, daemon and what it found, and proves the limits'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "status" -d 'Shows the daemon\'s tenants, their limits, their members, and what they get of each device'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "top" -d 'Shows tenants and devices in a view that goes on, with keys to order, filter, pause and set'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "ps" -d 'Shows every process that is connected to the daemon, its container, and what it got of each device'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "set" -d 'Changes a tenant\'s terms while its programs run, until the configuration is read again'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "pause" -d 'Lets a tenant launch nothing until it is resumed; what it holds stays, what is in flight ends'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "resume" -d 'Lets a paused tenant launch again'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "explain" -d 'Says why a tenant waits or does not: who is before it, which rule limits it, when that ends'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "usage" -d 'Shows what tenants used: device time, memory, time at the gate, refused allocations'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "report" -d 'Makes reports from the daemon\'s record: who used what, who owes what, what is idle, which limits fit'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "validate" -d 'Runs programs alone and together, each as its tenant, and reports what sharing costs: latency, throughput, P99, fairness'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "events" -d 'Shows what happened: members that came and went, changes and who made them, refusals, findings'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "audit" -d 'Shows an audit log, or checks that nothing in it was changed or taken out'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "metrics" -d 'Prints the daemon\'s metrics in the OpenMetrics text format'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "docker" -d 'Starts containers under limits'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "cdi" -d 'Describes tenants to container engines, by the Container Device Interface'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "sim" -d 'Looks after the simulated GPU'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "clean" -d 'Removes what ended programs left in memory: ledgers that no process holds'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "completions" -d 'Prints the completions of vgpu and vgpud for a shell'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "man" -d 'Writes the manual pages of vgpu and vgpud'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and not __fish_seen_subcommand_from run check doctor status top ps set pause resume explain usage report validate events audit metrics docker cdi sim clean completions man help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and __fish_seen_subcommand_from report" -f -a "usage" -d 'Shows who used how much: device time and memory, and each one\'s part; all parts together are 100.0 %'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and __fish_seen_subcommand_from report" -f -a "chargeback" -d 'Makes a bill: device time and memory at rates, by tenant, group or label; its lines add up to its total exactly'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and __fish_seen_subcommand_from report" -f -a "idle" -d 'Shows what was held and not used: memory that tenants kept while they computed nothing, and idle time of devices'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and __fish_seen_subcommand_from report" -f -a "rightsizing" -d 'Suggests limits that fit: what each tenant had at most beside what it may have, what would be enough, and why'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and __fish_seen_subcommand_from report" -f -a "efficiency" -d 'Shows how much of what was kept for a tenant it used: of its ceiling on device time, and of its memory limit'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and __fish_seen_subcommand_from report" -f -a "trend" -d 'Shows how use goes on: what each day had, whether it becomes more or less, and where that leads if it goes on so'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and __fish_seen_subcommand_from report" -f -a "savings" -d 'Computes what sharing saves: GPUs of one\'s own against fewer that are shared. Needs no record'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and __fish_seen_subcommand_from docker" -f -a "run" -d 'Adds libvgpu.so and limits to a `docker run`, and becomes it'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and __fish_seen_subcommand_from cdi" -f -a "generate" -d 'Writes a CDI specification with a device for each tenant of vgpud'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and __fish_seen_subcommand_from sim" -f -a "stat" -d 'Shows the truth: bytes and device time of each process, as the device knows them'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and __fish_seen_subcommand_from sim" -f -a "reset" -d 'Removes the simulated machine, and its directory if nothing else is in it'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and __fish_seen_subcommand_from sim" -f -a "profiles" -d 'Shows the devices that can be simulated'
complete -c vgpu -n "__fish_vgpu_using_subcommand help; and __fish_seen_subcommand_from sim" -f -a "env" -d 'Prints the environment that gives any program the simulated driver, for a shell to evaluate'
