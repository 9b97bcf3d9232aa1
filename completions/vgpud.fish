complete -c vgpud -l config -d 'Take devices, tenants and everything else from this file (docs/vgpud.md); SIGHUP reads it again' -r -F
complete -c vgpud -l check -d 'Show what the file means, or everything that is wrong with it, and start nothing' -r -F
complete -c vgpud -l driver -d 'With a file: whether to ask the driver which devices there are. Without it only the file says' -r -f -a "auto\t''
none\t''"
complete -c vgpud -l tenant -d 'A tenant, repeatable: NAME, or NAME:memory=SIZE,sm=PERCENT,mode=MODE,strict=BOOL,socket=PATH with any of these' -r
complete -c vgpud -l socket -d 'Where the members connect, if there is one tenant only' -r -F
complete -c vgpud -l memory-limit -d 'Memory limit per device of every tenant that names none of its own' -r
complete -c vgpud -l sm-limit -d 'Ceiling on device time in percent, of every tenant that names none of its own' -r
complete -c vgpud -l admin-socket -d 'Where `vgpu` asks; `none` for no such socket' -r -F
complete -c vgpud -l runtime-dir -d 'Directory of the sockets that are not named [default: $VGPU_RUNTIME_DIR, /run/vgpu, $XDG_RUNTIME_DIR/vgpu]' -r -F
complete -c vgpud -l state-dir -d 'Directory of what outlives the daemon, the record of usage; `none`: nothing does [default: /var/lib/vgpu for root, $XDG_STATE_HOME/vgpu; RUNTIME_DIR/state where that is not the usual one; none if every socket is named]' -r -F
complete -c vgpud -l max-connections -d 'Most connections a tenant may hold open at once' -r
complete -c vgpud -l log -d 'What is logged on stderr: error, warn, info, debug or off [default: info]' -r -f -a "off\t''
error\t''
warn\t''
info\t''
debug\t''"
complete -c vgpud -l json -d 'With --check: print JSON'
complete -c vgpud -s h -l help -d 'Print help'
complete -c vgpud -s V -l version -d 'Print version'
