UPDATE bench.hot SET n = n + 1;
