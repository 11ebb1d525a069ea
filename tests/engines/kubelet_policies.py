"""NetworkPolicies of ingress, as a network plugin enforces them: what is not allowed to a pod that a policy selects is dropped.

    policies = Policies()
    policies.rules_of(pod, pods)        # [("10.78.0.12", 7440, 7449), ...], or None for a pod that no policy selects

Routing rules of the pod's network do it: its table of own addresses is asked for allowed sources and ports alone. There is no record of
connections, so the pods' own ones are told by their ports, which are above those that anything here listens at.
"""

import threading

LAST_PORT = 32767       # above it are the ports of connections that the pod itself has opened
BASES = 1000, 5000      # of the rules in force and of the next ones, in turn


def selects(selector, labels):
    return (selector or {}).get("matchLabels", {}).items() <= labels.items()


def labels_of(one):
    return one["metadata"].get("labels", {})


class Policies:
    def __init__(self):
        self.lock, self.all, self.namespaces = threading.Lock(), {}, {}

    def follow(self, api, changed):
        for kind, policy in api.watch("/apis/networking.k8s.io/v1/networkpolicies"):
            with self.lock:
                self.all.pop(policy["metadata"]["uid"], None)
                if kind != "DELETED":
                    self.all[policy["metadata"]["uid"]] = policy
            changed()

    def follow_namespaces(self, api, changed):
        for _, namespace in api.watch("/api/v1/namespaces"):
            with self.lock:
                self.namespaces[namespace["metadata"]["name"]] = labels_of(namespace)
            changed()

    def rules_of(self, pod, pods):
        """(source, first port, last port) of all that may reach the pod; `pods`: (pod, address) of all that there are."""
        with self.lock:
            of = [policy for policy in self.all.values() if policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
                  and "Ingress" in policy["spec"].get("policyTypes", ["Ingress"]) and selects(policy["spec"]["podSelector"], labels_of(pod))]
            if not of:
                return None
            return sorted({(source, *ports) for policy in of for rule in policy["spec"].get("ingress", ()) for source in self._sources(policy, rule, pods)
                           for ports in self._ports(rule)})

    def _sources(self, policy, rule, pods):
        if not rule.get("from"):
            return ["0.0.0.0/0"]
        found = []
        for peer in rule["from"]:
            if "ipBlock" in peer:
                found.append(peer["ipBlock"]["cidr"])
                continue
            for pod, address in pods:
                namespace = pod["metadata"]["namespace"]
                is_of = selects(peer["namespaceSelector"], self.namespaces.get(namespace, {})) if "namespaceSelector" in peer else (
                    namespace == policy["metadata"]["namespace"])
                if is_of and selects(peer.get("podSelector"), labels_of(pod)):
                    found.append(address)
        return found

    @staticmethod
    def _ports(rule):
        return [(port["port"], port.get("endPort", port["port"])) for port in rule.get("ports", ())] or [(1, LAST_PORT)]


def commands(rules, node, base):
    """Lines of `ip -batch` that add these rules. `node`: the address by which kubelets come, which no policy shuts out."""
    if rules is None:
        return []
    allowed = [(node, 1, LAST_PORT), *rules]
    return [*(f"rule add pref {base + n} iif eth0 from {source} ipproto tcp dport {first}-{last} lookup local" for n, (source, first, last) in enumerate(allowed)),
            f"rule add pref {base + len(allowed)} iif eth0 ipproto tcp dport 1-{LAST_PORT} blackhole"]
