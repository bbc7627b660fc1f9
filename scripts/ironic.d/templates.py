"""Requests that are sent to both servers in this order. Each server starts without templates."""

ONE = "00000000-1111-4111-8111-111111111111"
TWO = "22222222-2222-4222-8222-222222222222"
NONE = "99999999-9999-4999-8999-999999999999"
SECRET = {"interface": "deploy", "step": "write_image", "args": {"password": "s3cret", "url": "http://h/i"}, "priority": 80}


def raid(level):
    """Returns a step that creates an array of this level on all disks, for the root filesystem."""
    disk = {"size_gb": "MAX", "raid_level": level, "is_root_volume": True}
    args = {"logical_disks": [disk], "delete_configuration": True}
    return {"interface": "raid", "step": "create_configuration", "args": args, "priority": 10}


def step(**changes):
    """Returns a step with changes; None omits a field."""
    all_fields = {"interface": "deploy", "step": "apply_layout", "args": {"erase": "secure"}, "priority": 90, **changes}
    return {name: value for name, value in all_fields.items() if value is not None}


def patch(op, path, *value):
    return [{"op": op, "path": path, **({"value": value[0]} if value else {})}]


AT = "/v1/deploy_templates"
MIRROR, STRIPE = "CUSTOM_BM_CONFIG_RAID_DISK_MIRROR", "CUSTOM_BM_CONFIG_RAID_DISK_STRIPE"

# Intended differences of the responses: Ironic's response, ours, and the reason.
KNOWN = {
    "no JSON": (500, 400, "the client has sent an invalid request, and the server has not failed"),
    "a name with a line feed": (201, 400, "Ironic's pattern accepts the line feed, although the name is not a trait"),
    "priority as text": (201, 201, "Ironic returns the text in the first response, and the number in later ones"),
    "no such collection": (404, 404, "the error has the format of drophammer's own API"),
    "the root": (200, 200, "each server returns its own name"),
    "the version": (200, 200, "the server's collections: deploy templates in drophammer, nodes and ports in Ironic"),
    "the version, with a slash": (200, 200, "as above"),
}

# (description, method, path, body, headers). A body of type bytes is sent unchanged.
REQUESTS = [
    ("the root", "GET", "/", None, {}),
    ("the version", "GET", "/v1", None, {}),
    ("the version, with a slash", "GET", "/v1/", None, {}),
    ("no such collection", "GET", "/v1/no_such", None, {}),
    ("none yet", "GET", AT, None, {}),
    ("none yet, with a slash", "GET", AT + "/", None, {}),
    # Versions.
    ("without a version", "GET", AT, None, {"version": None}),
    ("too old to read", "GET", AT, None, {"version": "1.54"}),
    ("too old to write", "POST", AT, {"name": MIRROR, "steps": [raid("1")]}, {"version": "1.54"}),
    ("the first version that has it", "GET", AT, None, {"version": "1.55"}),
    ("the latest", "GET", AT, None, {"version": "latest"}),
    ("a version to come", "GET", AT, None, {"version": "1.9999"}),
    ("another major version", "GET", AT, None, {"version": "2.1"}),
    ("no version at all", "GET", AT, None, {"version": "new"}),
    ("the standard header", "GET", AT, None, {"version": None, "OpenStack-API-Version": "baremetal 1.60"}),
    # Create.
    ("the seed's mirror", "POST", AT, {"name": MIRROR, "steps": [raid("1")], "uuid": ONE}, {}),
    ("the seed's stripe", "POST", AT, {"name": STRIPE, "steps": [raid("0")], "uuid": TWO}, {}),
    ("the name again", "POST", AT, {"name": MIRROR, "steps": [raid("1")]}, {}),
    ("the uuid again", "POST", AT, {"name": "CUSTOM_OTHER", "steps": [raid("1")], "uuid": ONE}, {}),
    ("two steps, and extra", "POST", AT, {"name": "CUSTOM_TWO", "steps": [step(), SECRET], "extra": {"a": [1, None]}}, {}),
    ("extra is null", "POST", AT, {"name": "CUSTOM_NULL", "steps": [step()], "extra": None, "uuid": None}, {}),
    ("a standard trait", "POST", AT, {"name": "HW_CPU_X86_VMX", "steps": [step()]}, {}),
    ("priority as text", "POST", AT, {"name": "CUSTOM_TEXT", "steps": [step(priority="7")]}, {}),
    ("priority as text, shown", "GET", f"{AT}/CUSTOM_TEXT", None, {}),
    ("priority 0", "POST", AT, {"name": "CUSTOM_ZERO", "steps": [step(priority=0)]}, {}),
    ("a step that nobody has", "POST", AT, {"name": "CUSTOM_UNKNOWN", "steps": [step(step="no_such")]}, {}),
    ("each interface", "POST", AT, {"name": "CUSTOM_ALL", "steps": [step(interface=i) for i in
        ("power", "management", "deploy", "firmware", "bios", "raid")]}, {}),
    ("a description", "POST", AT, {"name": "CUSTOM_DESCRIBED", "steps": [step()], "description": "words"}, {}),
    ("no body", "POST", AT, None, {}),
    ("no JSON", "POST", AT, b"{", {}),
    ("a list", "POST", AT, [1], {}),
    ("a text", "POST", AT, "x", {}),
    ("no name", "POST", AT, {"steps": [step()]}, {}),
    ("name is null", "POST", AT, {"name": None, "steps": [step()]}, {}),
    ("a name in lower case", "POST", AT, {"name": "custom_x", "steps": [step()]}, {}),
    ("a name that is no trait", "POST", AT, {"name": "RAID", "steps": [step()]}, {}),
    ("a name with a hyphen", "POST", AT, {"name": "CUSTOM_A-B", "steps": [step()]}, {}),
    ("only the prefix", "POST", AT, {"name": "CUSTOM_", "steps": [step()]}, {}),
    ("a name of 255", "POST", AT, {"name": "CUSTOM_" + "A" * 248, "steps": [step()]}, {}),
    ("a name of 256", "POST", AT, {"name": "CUSTOM_" + "A" * 249, "steps": [step()]}, {}),
    ("no steps", "POST", AT, {"name": "CUSTOM_X"}, {}),
    ("an empty list of steps", "POST", AT, {"name": "CUSTOM_X", "steps": []}, {}),
    ("steps are no list", "POST", AT, {"name": "CUSTOM_X", "steps": step()}, {}),
    ("a field too many", "POST", AT, {"name": "CUSTOM_X", "steps": [step()], "traits": []}, {}),
    ("uuid is none", "POST", AT, {"name": "CUSTOM_X", "steps": [step()], "uuid": "one"}, {}),
    ("uuid without hyphens", "POST", AT, {"name": "CUSTOM_HEX", "steps": [step()], "uuid": "3" * 32}, {}),
    ("uuid is empty", "POST", AT, {"name": "CUSTOM_EMPTY", "steps": [step()], "uuid": ""}, {}),
    ("extra is a text", "POST", AT, {"name": "CUSTOM_X", "steps": [step()], "extra": "x"}, {}),
    ("an interface that is none", "POST", AT, {"name": "CUSTOM_X", "steps": [step(interface="network")]}, {}),
    ("no interface", "POST", AT, {"name": "CUSTOM_X", "steps": [step(interface=None)]}, {}),
    ("no step", "POST", AT, {"name": "CUSTOM_X", "steps": [step(step=None)]}, {}),
    ("an empty step", "POST", AT, {"name": "CUSTOM_X", "steps": [step(step="")]}, {}),
    ("no args", "POST", AT, {"name": "CUSTOM_X", "steps": [step(args=None)]}, {}),
    ("args are a list", "POST", AT, {"name": "CUSTOM_X", "steps": [step(args=[])]}, {}),
    ("no priority", "POST", AT, {"name": "CUSTOM_X", "steps": [step(priority=None)]}, {}),
    ("a priority below 0", "POST", AT, {"name": "CUSTOM_X", "steps": [step(priority=-1)]}, {}),
    ("a priority in words", "POST", AT, {"name": "CUSTOM_X", "steps": [step(priority="high")]}, {}),
    ("a broken priority", "POST", AT, {"name": "CUSTOM_X", "steps": [step(priority=1.5)]}, {}),
    ("a priority with a point", "POST", AT, {"name": "CUSTOM_POINT", "steps": [step(priority=1.0)]}, {}),
    ("priority is true", "POST", AT, {"name": "CUSTOM_X", "steps": [step(priority=True)]}, {}),
    ("a field too many in a step", "POST", AT, {"name": "CUSTOM_X", "steps": [step(order=1)]}, {}),
    ("the step twice", "POST", AT, {"name": "CUSTOM_X", "steps": [step(), step(priority=0)]}, {}),
    ("create at a name", "POST", AT + "/CUSTOM_X", {"name": "CUSTOM_X", "steps": [step()]}, {}),
    # Show.
    ("by uuid", "GET", f"{AT}/{ONE}", None, {}),
    ("by name", "GET", f"{AT}/{MIRROR}", None, {}),
    ("by uuid in capitals", "GET", f"{AT}/{'aaaaaaaa-1111-4111-8111-111111111111'.upper()}", None, {}),
    ("secrets are masked", "GET", f"{AT}/CUSTOM_TWO", None, {}),
    ("with a slash", "GET", f"{AT}/{MIRROR}/", None, {}),
    ("with .json", "GET", f"{AT}/{MIRROR}.json", None, {}),
    ("unknown uuid", "GET", f"{AT}/{NONE}", None, {}),
    ("unknown name", "GET", f"{AT}/CUSTOM_NOBODY", None, {}),
    ("what is no name", "GET", f"{AT}/a%20b", None, {}),
    ("some fields", "GET", f"{AT}/{ONE}?fields=name,steps", None, {}),
    ("fields in capitals", "GET", f"{AT}/{ONE}?fields=NAME", None, {}),
    ("a field that is none", "GET", f"{AT}/{ONE}?fields=name,traits", None, {}),
    ("no fields", "GET", f"{AT}/{ONE}?fields=", None, {}),
    ("an argument too many", "GET", f"{AT}/{ONE}?detail=true", None, {}),
    ("below a template", "GET", f"{AT}/{ONE}/steps", None, {}),
    # List.
    ("all", "GET", AT, None, {}),
    ("in detail", "GET", AT + "?detail=True", None, {}),
    ("not in detail", "GET", AT + "?detail=false", None, {}),
    ("detail in other words", "GET", AT + "?detail=yes&limit=1", None, {}),
    ("detail is no truth", "GET", AT + "?detail=maybe", None, {}),
    ("fields", "GET", AT + "?fields=name,extra", None, {}),
    ("fields and detail", "GET", AT + "?fields=name&detail=true", None, {}),
    ("fields and no detail", "GET", AT + "?fields=name&detail=false", None, {}),
    ("a wrong field", "GET", AT + "?fields=traits", None, {}),
    ("two", "GET", AT + "?limit=2", None, {}),
    ("two after the first", "GET", f"{AT}?limit=2&marker={ONE}", None, {}),
    ("two, with fields", "GET", AT + "?limit=2&fields=name,uuid", None, {}),
    ("limit 0", "GET", AT + "?limit=0", None, {}),
    ("limit -1", "GET", AT + "?limit=-1", None, {}),
    ("limit in words", "GET", AT + "?limit=two", None, {}),
    ("a large limit", "GET", AT + "?limit=5000", None, {}),
    ("by name", "GET", AT + "?sort_key=name", None, {}),
    ("by name, backwards", "GET", AT + "?sort_key=name&sort_dir=desc", None, {}),
    ("by name, after the stripe", "GET", f"{AT}?sort_key=name&marker={TWO}", None, {}),
    ("by name backwards, after the stripe", "GET", f"{AT}?sort_key=name&sort_dir=desc&marker={TWO}&limit=1", None, {}),
    ("by uuid", "GET", f"{AT}?sort_key=uuid&limit=1&fields=name", None, {}),
    ("by time", "GET", AT + "?sort_key=created_at", None, {}),
    ("by change", "GET", AT + "?sort_key=updated_at", None, {}),
    ("by extra", "GET", AT + "?sort_key=extra", None, {}),
    ("by steps", "GET", AT + "?sort_key=steps", None, {}),
    ("by no field", "GET", AT + "?sort_key=traits", None, {}),
    ("sideways", "GET", AT + "?sort_dir=side", None, {}),
    ("backwards", "GET", AT + "?sort_dir=desc&fields=name", None, {}),
    ("an unknown marker", "GET", f"{AT}?marker={NONE}", None, {}),
    ("a marker by name", "GET", f"{AT}?marker={MIRROR}", None, {}),
    ("a marker that is no name", "GET", f"{AT}?marker=a%20b", None, {}),
    ("an unknown argument", "GET", AT + "?name=x", None, {}),
    # Patch.
    ("a new name", "PATCH", f"{AT}/{ONE}", patch("replace", "/name", "CUSTOM_RENAMED"), {}),
    ("gone by the old name", "GET", f"{AT}/{MIRROR}", None, {}),
    ("the name back, by name", "PATCH", f"{AT}/CUSTOM_RENAMED", patch("replace", "/name", MIRROR), {}),
    ("new steps", "PATCH", f"{AT}/{ONE}", patch("replace", "/steps", [step(priority=95), raid("1")]), {}),
    ("a step's priority", "PATCH", f"{AT}/{ONE}", patch("replace", "/steps/0/priority", 0), {}),
    ("one more step", "PATCH", f"{AT}/{ONE}", patch("add", "/steps/-", SECRET), {}),
    ("an argument", "PATCH", f"{AT}/{ONE}", patch("add", "/steps/1/args/more", 1), {}),
    ("a step less", "PATCH", f"{AT}/{ONE}", patch("remove", "/steps/2"), {}),
    ("extra", "PATCH", f"{AT}/{ONE}", patch("add", "/extra/owner", "us"), {}),
    ("extra as a whole", "PATCH", f"{AT}/{ONE}", patch("replace", "/extra", {"x": 1}), {}),
    ("extra away", "PATCH", f"{AT}/{ONE}", patch("remove", "/extra"), {}),
    ("what is there now", "GET", f"{AT}/{ONE}", None, {}),
    ("nothing", "PATCH", f"{AT}/{ONE}", [], {}),
    ("nothing, of one that was never changed", "PATCH", f"{AT}/CUSTOM_ZERO", [], {}),
    ("a word too many in a step", "PATCH", f"{AT}/{ONE}", patch("add", "/steps/0/order", 1), {}),
    ("args that are no object", "PATCH", f"{AT}/{ONE}", patch("replace", "/steps/0/args", 7), {}),
    ("two new steps", "PATCH", f"{AT}/CUSTOM_ZERO", patch("replace", "/steps", [step(step="z"), step(step="a"), step(priority=0)]), {}),
    ("a secret", "PATCH", f"{AT}/CUSTOM_ZERO", patch("add", "/steps/0/args/deep", {"api_token": "x", "list": [1]}), {}),
    ("the name of another", "PATCH", f"{AT}/{ONE}", patch("replace", "/name", STRIPE), {}),
    ("a bad name", "PATCH", f"{AT}/{ONE}", patch("replace", "/name", "x"), {}),
    ("without its name", "PATCH", f"{AT}/{ONE}", patch("remove", "/name"), {}),
    ("without steps", "PATCH", f"{AT}/{ONE}", patch("replace", "/steps", []), {}),
    ("steps away", "PATCH", f"{AT}/{ONE}", patch("remove", "/steps"), {}),
    ("a bad interface", "PATCH", f"{AT}/{ONE}", patch("replace", "/steps/0/interface", "x"), {}),
    ("a step twice", "PATCH", f"{AT}/{ONE}", patch("add", "/steps/-", step()), {}),
    ("the uuid", "PATCH", f"{AT}/{ONE}", patch("replace", "/uuid", NONE), {}),
    ("the time", "PATCH", f"{AT}/{ONE}", patch("replace", "/created_at", "now"), {}),
    ("a field that is none", "PATCH", f"{AT}/{ONE}", patch("add", "/traits", []), {}),
    ("the description", "PATCH", f"{AT}/{ONE}", patch("replace", "/description", "x"), {}),
    ("the description, added", "PATCH", f"{AT}/{ONE}", patch("add", "/description", "x"), {}),
    ("what is not there", "PATCH", f"{AT}/{ONE}", patch("remove", "/extra/none"), {}),
    ("a step that is not there", "PATCH", f"{AT}/{ONE}", patch("remove", "/steps/9"), {}),
    ("move", "PATCH", f"{AT}/{ONE}", [{"op": "move", "from": "/name", "path": "/extra"}], {}),
    ("test", "PATCH", f"{AT}/{ONE}", patch("test", "/name", MIRROR), {}),
    ("add without a value", "PATCH", f"{AT}/{ONE}", patch("add", "/extra/a"), {}),
    ("a path that is none", "PATCH", f"{AT}/{ONE}", patch("add", "extra", {}), {}),
    ("a path with a slash at its end", "PATCH", f"{AT}/{ONE}", patch("add", "/extra/", {}), {}),
    ("no list", "PATCH", f"{AT}/{ONE}", {"name": "CUSTOM_X"}, {}),
    ("no body", "PATCH", f"{AT}/{ONE}", None, {}),
    ("a word too many", "PATCH", f"{AT}/{ONE}", [{"op": "add", "path": "/extra/a", "value": 1, "from": "x"}], {}),
    ("half of it wrong", "PATCH", f"{AT}/{ONE}", patch("replace", "/name", "CUSTOM_HALF") + patch("remove", "/steps/9"), {}),
    ("of nobody", "PATCH", f"{AT}/{NONE}", patch("replace", "/name", "CUSTOM_X"), {}),
    ("of all", "PATCH", AT, patch("replace", "/name", "CUSTOM_X"), {}),
    ("nothing has changed", "GET", f"{AT}/{ONE}", None, {}),
    ("put", "PUT", f"{AT}/{ONE}", {"name": "CUSTOM_X", "steps": [step()]}, {}),
    # Delete.
    ("of nobody", "DELETE", f"{AT}/{NONE}", None, {}),
    ("of nobody, by name", "DELETE", f"{AT}/CUSTOM_NOBODY", None, {}),
    ("too old to delete", "DELETE", f"{AT}/{ONE}", None, {"version": "1.54"}),
    ("by uuid", "DELETE", f"{AT}/{ONE}", None, {}),
    ("by name", "DELETE", f"{AT}/{STRIPE}", None, {}),
    ("again", "DELETE", f"{AT}/{ONE}", None, {}),
    ("of all", "DELETE", AT, None, {}),
    ("what is left", "GET", AT + "?sort_key=name&fields=name", None, {}),
    ("a name with a line feed", "POST", AT, {"name": "CUSTOM_A\n", "steps": [step()]}, {}),
]
