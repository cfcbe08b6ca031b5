import { APICallError, generateText } from "ai";
import { provider } from "./provider.mjs";

const told = [];
for (const options of [{ model: provider("nobody/has-this") }, { model: provider(process.env.MODEL), temperature: 9 }]) {
  try {
    await generateText({ prompt: "Hello", maxRetries: 0, ...options });
    told.push("nothing");
  } catch (error) {
    told.push({ status: APICallError.isInstance(error) ? error.statusCode : null, message: error.message });
  }
}

console.log(JSON.stringify(told));
