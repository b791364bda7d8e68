fillFilters();
listen();
listenLabels();
listenFolds();
offerTables();
offerCharts();
refilter();
addEventListener("hashchange", fromHash);
fromHash();
if (state.open === null && state.shown.length) show(state.shown[0]); /* the most changed one, without moving the page */
(window.requestIdleCallback || setTimeout)(() => cases.length && haystack(0)); /* so that the first search is fast too */
