import { suite } from "./suite.js";
import { realMissing, realTarget } from "./target.js";

suite("the SDK against a real server", realTarget, { skip: realMissing() });
