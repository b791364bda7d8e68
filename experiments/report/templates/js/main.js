fillFilters();
listen();
listenLabels();
listenHelp();
offerTables();
offerCharts();
refilter();
addEventListener("hashchange", fromHash);
fromHash();
