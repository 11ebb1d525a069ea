"""The benchmarks of a running cluster: figures by family, each beside a limit or a peer in the same run.

measure       samples, turns, references and ratios
redistribution, collectives, products, hosts, service, programs    the figures
peers         other programs that do the same work
report        the table and the JSON
"""
