@rem The same as scripts/run, for Windows.
@py -3 "%~dp0run" %*
