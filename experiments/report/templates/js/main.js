fillFilters();
listen();
listenLabels();
listenHelp();
offerTables();
offerCharts();
refilter();
addEventListener("hashchange", fromHash);
fromHash();
(window.requestIdleCallback || setTimeout)(() => cases.length && haystack(0)); /* so that the first search is fast too */
