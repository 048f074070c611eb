from covist.cli.app import main

main()
